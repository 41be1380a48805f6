"""Does the server's step again from what was on the wire, and compares with what it broadcast next.

Round headers say all that the step depends on; c_i are known from the updates themselves. What was coded with
a loss on its way down cannot be checked: the server goes on from its own x and c, which nobody saw.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from common.algorithms import ALGORITHMS
from common.errors import ConfigError, DataError
from common.names import natural
from common.server_step.aggregate import ServerState
from common.server_step.robust import Robustness, move_norms
from common.server_step.updates import UpdateReader, reduced, share_variate, shared_step_sum
from common.tensors import safetensors_files
from common.tensors.layout import Flat, Layout, Purpose
from common.wire.encoding import Encoding
from fedpvr.v1 import federation_pb2 as pb
from fedwire.source import Capture
from fedwire.transfers import Transfer, Transfers

MODEL = (Purpose.MODEL, Purpose.BUFFER)


@dataclass(frozen=True)
class Verdict:
    """What came of replaying one round."""

    round: int
    updates: int
    same: bool | None
    """Whether everything that could be compared is the same to the bit; None if nothing could."""
    compared: str
    """With what it was compared."""
    problems: list[str] = field(default_factory=list)


@dataclass
class _Broadcast:
    """A round as the capture shows it."""

    header: pb.RoundHeader
    layout: Layout
    encoding: Encoding
    flat: Flat
    derived: bool
    """c did not travel."""


class Replay:
    """Goes through the rounds of a capture in order."""

    def __init__(self, capture: Capture, run_dir: Path | None) -> None:
        self._run_dir = run_dir
        self._transfers = Transfers(capture)
        self._index = _indices(capture)
        self._variates: dict[str, Flat] = {}
        """c_i after the last update, by client."""
        self._layout: Layout | None = None
        """The same in all rounds."""
        self._server: ServerState | None = None
        self._c: Flat | None = None
        """c as computed for the round that comes next."""

    def run(self) -> list[Verdict]:
        """A verdict for every round with updates in the capture."""
        with np.errstate(all="ignore"):  # What is not finite shows in the comparison.
            return [self._replay(r) for r in sorted({t.round for t in self._transfers if t.up})]

    def _replay(self, r: int) -> Verdict:
        ups = [t for t in self._transfers if t.up and t.round == r and t.outcome == "ACCEPTED"]
        ups.sort(key=lambda t: self._index.get(t.client, natural(t.client)))
        try:
            current = self._broadcast(r)
            new, problems = self._step(r, current, ups)
            compared, differing = self._compare(r, current, new)
        except DataError as error:
            self._c = None
            return Verdict(r, len(ups), None, "nothing", [str(error)])
        return Verdict(r, len(ups), not differing, compared, [*differing, *problems])

    def _broadcast(self, r: int) -> _Broadcast:
        """The round from a download that is whole, best one that has c in it."""
        problem = f"round {r}: no client's download is in the capture"
        downs = [t for t in self._transfers if not t.up and t.round == r]
        for transfer in sorted(downs, key=lambda t: _derives(t.encoding)):
            try:
                flat = self._transfers.values(transfer)
            except DataError as error:
                problem = str(error)
                continue
            encoding = transfer.encoding.part(*MODEL, Purpose.CONTROL)
            layout, header = encoding.layout, transfer.header
            assert isinstance(header, pb.RoundHeader)
            flat = flat[: layout.num_bytes].copy()
            self._require_sound(header, layout)
            derived = _derives(encoding)
            if derived and r > 1:
                if self._c is None:
                    raise DataError(f"round {r}: c was derived from a round that is not in the capture")
                flat[layout.part(*MODEL).num_bytes :] = self._c
            return _Broadcast(header, layout, encoding, flat, derived)
        raise DataError(problem)

    def _require_sound(self, header: pb.RoundHeader, layout: Layout) -> None:
        """Raises for a round that no server could have gone on from."""
        self._layout = self._layout or layout
        if layout.specs != self._layout.specs:
            raise DataError(f"round {header.round}: the tensors are other ones than those of earlier rounds")
        models = {(s.name, s.dtype, s.shape) for s in layout.specs if s.purpose is Purpose.MODEL}
        controls = [layout.specs[k] for k in layout.indices(Purpose.CONTROL)]
        if any((s.name, s.dtype, s.shape) not in models for s in controls) or header.num_clients < 1:
            raise DataError(f"round {header.round}: c is not of the model, or there are no clients")

    def _step(self, r: int, current: _Broadcast, ups: list[Transfer]) -> tuple[Flat, list[str]]:
        """x and c of the next round, and what of them is not certain."""
        header, layout, seen = current.header, current.layout, current.flat
        algorithm = ALGORITHMS.get(header.algorithm)
        if algorithm is None:
            raise DataError(f"round {r}: this release does not know the algorithm {header.algorithm!r}")
        if _lossy(current.encoding.part(*MODEL)):
            raise DataError(f"round {r}: x was coded with a loss, so the server's own x is not on the wire")
        if algorithm.keeps_h and r == 1:
            self._server = ServerState(layout, algorithm, header.prox_weight)
        if algorithm.keeps_h and self._server is None:
            raise DataError(f"round {r}: the server's state h depends on rounds before the capture")
        if not ups:
            raise DataError(f"round {r}: no accepted update is in the capture")
        codecs = header.update_codec or "fp32", header.control_codec or "fp32"
        update_reader = UpdateReader(layout, algorithm, *codecs, header.derived)
        robustness = _robustness(r, header)
        aggregate = robustness.aggregate(layout, seen)
        consistent = True
        unknown = []
        steps = []
        for transfer in self._within_bound(ups, robustness, update_reader, current):
            update = transfer.header
            assert isinstance(update, pb.UpdateHeader)
            c_i = self._variates.get(transfer.client)
            if c_i is None and self._counted(r, transfer.client) and layout.indices(Purpose.CONTROL):
                unknown.append(transfer.client)
            if not transfer.encoding.matches(update_reader.encoding) or not update.steps * header.eta_l:
                raise DataError(f"{transfer.name}: is not what the round asked for")
            if header.weighting == "examples" and not update.examples:
                raise DataError(f"{transfer.name}: is of no examples")
            steps.append(update.steps * header.eta_l)
            found = self._found(transfer, update_reader, current)
            consistent &= update_reader.follows(found, seen, c_i, steps[-1])
            aggregate.add(found, c_i, float(update.examples) if header.weighting == "examples" else 1.0)
            self._variates[transfer.client] = found[layout.part(*MODEL).num_bytes :]
        new = aggregate.result(seen, header.eta_g, header.num_clients, self._server)
        step_sum = shared_step_sum(steps, header.num_clients, header.eta_g, header.weighting)
        if step_sum is not None and consistent and not _lossy(current.encoding):
            share_variate(layout, algorithm, reduced(layout, seen), new, step_sum)
            return new, []
        problems = [
            f"c is not certain: c_i of {name} before round {r} is not in the capture" for name in unknown
        ]
        if _lossy(current.encoding):
            problems.append("c was coded with a loss, so the server's own c is not on the wire")
        return new, problems

    def _found(self, transfer: Transfer, update_reader: UpdateReader, current: _Broadcast) -> Flat:
        """y_i, buffers and c_i+ of an update."""
        update = transfer.header
        assert isinstance(update, pb.UpdateHeader)
        c_i = self._variates.get(transfer.client)
        raw = self._transfers.assemble(transfer)
        return update_reader.values(raw, current.flat, c_i, update.steps * current.header.eta_l)

    def _within_bound(
        self, ups: list[Transfer], robustness: Robustness, update_reader: UpdateReader, current: _Broadcast
    ) -> list[Transfer]:
        """The updates that the server has not left out."""
        if robustness.norm_bound is None:
            return ups
        norms = {}
        for t in ups:
            found, c_i = self._found(t, update_reader, current), self._variates.get(t.client)
            norms[t.client] = move_norms(current.layout, current.flat, found, c_i)
        outliers = robustness.outliers(norms)
        return [t for t in ups if t.client not in outliers]

    def _counted(self, r: int, client: str) -> bool:
        """Whether the server already counts an update of this client."""
        headers = (t.header for t in self._transfers if (t.round, t.client, t.up) == (r, client, False))
        return any(isinstance(header, pb.RoundHeader) and header.counted_round for header in headers)

    def _compare(self, r: int, current: _Broadcast, new: Flat) -> tuple[str, list[str]]:
        """What the new x and c were compared with, and where they differ."""
        layout = current.layout
        self._c = new[layout.part(*MODEL).num_bytes :].copy()
        try:
            after = self._broadcast(r + 1)
        except DataError:
            if self._run_dir is None or r != current.header.rounds:
                raise
            return self._compare_with_files(current, new)
        skipped = {Purpose.CONTROL} if after.derived else set()
        skipped |= {
            spec.purpose
            for spec, tensor_encoding in zip(after.layout.specs, after.encoding.tensor_encodings, strict=True)
            if tensor_encoding.codec.lossy
        }
        if Purpose.MODEL in skipped:
            raise DataError(f"round {r + 1}: x was coded with a loss, so it cannot be compared")
        chosen = [k for k, spec in enumerate(layout.specs) if spec.purpose not in skipped]
        return f"broadcast of round {r + 1}", _differing(layout, new, after.flat, chosen)

    def _compare_with_files(self, current: _Broadcast, new: Flat) -> tuple[str, list[str]]:
        assert self._run_dir is not None
        layout, differing = current.layout, []
        files: dict[str, tuple[Purpose, ...]] = {"model": MODEL, "control": (Purpose.CONTROL,)}
        if _lossy(current.encoding):
            del files["control"]
        for file, purposes in files.items():
            part = layout.part(*purposes)
            wanted = safetensors_files.read(self._run_dir / f"{file}.safetensors", part)
            start = 0 if file == "model" else layout.part(*MODEL).num_bytes
            differing += _differing(part, new[start:], wanted, range(len(part.specs)))
        return f"the run's final {'x' if len(files) == 1 else 'x and c'}", differing


def _differing(layout: Layout, one: Flat, other: Flat, chosen: list[int] | range) -> list[str]:
    return [
        f"{layout.specs[k].purpose.name.lower()} {layout.specs[k].name} differs"
        for k in chosen
        if layout.raw(one, k).tobytes() != layout.raw(other, k).tobytes()
    ]


def _robustness(r: int, header: pb.RoundHeader) -> Robustness:
    try:
        return Robustness(header.aggregation or "mean", header.norm_bound or None)
    except ConfigError as error:
        raise DataError(f"round {r}: this release does not know the server's rule: {error}") from error


def _lossy(encoding: Encoding) -> bool:
    return any(tensor_encoding.codec.lossy for tensor_encoding in encoding.tensor_encodings)


def _derives(encoding: Encoding) -> bool:
    return any(tensor_encoding.codec.name == "derived" for tensor_encoding in encoding.tensor_encodings)


def _indices(capture: Capture) -> dict[str, tuple[list[tuple[int, str]], str]]:
    """A sort key for every client that joined: its index."""
    found = {}
    for message in capture.messages:
        if message.rpc == "Join" and message.content.kind == "reply":
            index = pb.JoinReply.FromString(capture.data(message)).index
            found[message.client] = ([(index, "")], "")
    return found
