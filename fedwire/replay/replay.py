"""Does the server's step again from what was on the wire, and compares with what it broadcast next.

Round headers say all that the step depends on; c_i are known from the updates themselves. What was coded with
a loss on its way down cannot be checked: the server goes on from its own x and c, which nobody saw.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from common.errors import DataError, WireError
from common.names import natural
from common.server_step.aggregate import ServerState
from common.server_step.recount import recounted
from common.server_step.robust import Clip
from common.server_step.rules import Rules
from common.server_step.step import CSource, ServerStep, reweighted
from common.server_step.updates import ReadUpdate, UpdateReader
from common.tensors import safetensors_files
from common.tensors.layout import Flat, Layout, Purpose
from common.wire.messages import is_gradient
from fedpvr.v1 import federation_pb2 as pb
from fedwire.replay.captured_rounds import MODEL, CapturedRound, CapturedRounds
from fedwire.replay.chosen_svr import ChosenSvr
from fedwire.source import Capture
from fedwire.transfers import Transfer, Transfers


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


class Replay:
    """Goes through the rounds of a capture in order."""

    def __init__(self, capture: Capture, run_dir: Path | None) -> None:
        self._run_dir = run_dir
        self._transfers = Transfers(capture)
        self._rounds = CapturedRounds(self._transfers)
        self._index = _indices(capture)
        self._variates: dict[str, Flat] = {}
        """c_i after the last update, by client."""
        self._h: ServerState | None = None
        """The server's own state before the round that comes next; None where it is not known."""
        self._svr = ChosenSvr()
        self._c: Flat | None = None
        """c as computed for the round that comes next."""

    def run(self) -> list[Verdict]:
        """A verdict for every round with updates in the capture."""
        with np.errstate(all="ignore"):  # What is not finite shows in the comparison.
            ups = [t for t in self._transfers if t.up]
            before = [self._first_variates()] if any(is_gradient(t.header) for t in ups) else []
            rounds = sorted({t.round for t in ups if not is_gradient(t.header)})
            return [*before, *(self._replay(r) for r in rounds)]

    def _first_variates(self) -> Verdict:
        """c before round 1 from the gradients that clients sent as their c_i; as round 0."""
        accepted = [t for t in self._transfers if t.up and is_gradient(t.header) and t.outcome == "ACCEPTED"]
        ups = {t.client: t for t in sorted(accepted, key=lambda t: self._order(t.client))}
        try:
            first = self._rounds.first()
            reader = UpdateReader(first.rules, first.layout, first.flat)
            known = []
            for client, transfer in ups.items():
                assert isinstance(transfer.header, pb.UpdateHeader)
                c_i = reader.values(self._transfers.assemble(transfer), None, 0).copy()
                self._variates[client] = c_i
                known.append((first.rules.client_weight(transfer.header.examples), c_i))
            after = self._rounds.read(1, None)
            if len(ups) < first.rules.num_clients or not after.is_exact(Purpose.CONTROL):
                raise DataError("before round 1: not all of c is on the wire")
            control = first.layout.part(Purpose.CONTROL)
            c = control.allocate()
            for k, tensor in enumerate(recounted(first.rules, control, known)):
                control.store(c, k, tensor)
            differing = _differing(control, c, after.flat[after.model_bytes :], range(len(control.specs)))
        except (DataError, WireError) as error:
            return Verdict(0, len(ups), None, "nothing", [str(error)])
        return Verdict(0, len(ups), not differing, "c of round 1", differing)

    def _replay(self, r: int) -> Verdict:
        # A server that was killed inside the round has lost what it had accepted, and accepts it again.
        last = {t.client: t for t in self._transfers if t.up and t.round == r and t.outcome == "ACCEPTED"}
        ups = sorted(last.values(), key=lambda t: self._order(t.client))
        try:
            current = self._rounds.read(r, self._c)
            layout, new, problems = self._step(current, ups)
            compared, differing = self._compare(current, layout, new, certain=not problems)
        except DataError as error:
            self._c = None
            for client in [*self._variates] if self._svr.changes else [t.client for t in ups]:
                self._variates.pop(client, None)  # It has another one now.
            return Verdict(r, len(ups), None, "nothing", [str(error)])
        return Verdict(r, len(ups), not differing, compared, [*differing, *problems])

    def _step(self, current: CapturedRound, ups: list[Transfer]) -> tuple[Layout, Flat, list[str]]:
        """x and c of the next round with their layout, and what of them is not certain."""
        r, exact = current.rules.round, current.is_exact(*MODEL, Purpose.CONTROL)
        h, self._h = None if r == 1 else self._h, None
        if not current.is_exact(*MODEL):
            raise DataError(f"round {r}: x was coded with a loss, so the server's own x is not on the wire")
        if current.rules.method.keeps_h and r > 1 and h is None:
            raise DataError(f"round {r}: the server's state h depends on rounds before the capture")
        if not ups:
            raise DataError(f"round {r}: no accepted update is in the capture")
        reader = UpdateReader(current.rules, current.layout, current.flat)
        rules = replace(current.rules, on_probation=self._on_probation(current.rules, ups))
        step = ServerStep(rules, current.layout, current.flat, exact=exact, h=h)
        warm = current.rules.warm_variates
        unknown = [
            t.client for t in ups if t.client not in self._variates and (warm or self._counted(r, t.client))
        ]
        variates: dict[str, Flat] = {}

        def read(i: int, clip: Clip | None = None) -> ReadUpdate:
            update = self._read(reader, ups[i], known=ups[i].client not in unknown)
            update = update if clip is None else reader.taken_back(update, clip)
            variates[ups[i].client] = update.values[current.model_bytes :].copy()
            return update

        for i in range(len(ups)):
            step.add(i, read(i))
        closed = step.close(again=read, absent=self._absent(current, ups))
        self._h = closed.h
        after = self._variates | variates
        relaid = self._svr.after(current, closed, [t.client for t in ups], read, after)
        layout, closed, self._variates = relaid.layout, relaid.closed, relaid.variates
        if closed.c_source is CSource.FROM_MOVE or not layout.indices(Purpose.CONTROL):
            return layout, closed.flat, []
        problems = [
            f"c is not certain: c_i of {name} before round {r} is not in the capture" for name in unknown
        ]
        if not exact:
            problems.append("c was coded with a loss, so the server's own c is not on the wire")
        return layout, closed.flat, problems

    def _order(self, client: str) -> tuple[list[tuple[int, str]], str]:
        index = self._index.get(client)
        return natural(client) if index is None else ([(index, "")], "")

    def _on_probation(self, rules: Rules, ups: list[Transfer]) -> tuple[int, ...]:
        """Which of the updates come from clients that nothing counts of."""
        if rules.on_probation and any(transfer.client not in self._index for transfer in ups):
            raise DataError(
                f"round {rules.round}: who is on probation cannot be told: not all joins are in the capture"
            )
        return tuple(k for k, t in enumerate(ups) if self._index.get(t.client) in rules.on_probation)

    def _read(self, reader: UpdateReader, transfer: Transfer, *, known: bool) -> ReadUpdate:
        """An update; `known` if the c_i before it is."""
        update = transfer.header
        assert isinstance(update, pb.UpdateHeader)
        counts = update.steps and reader.rules.client_weight(update.examples)
        if not counts or not transfer.encoding.matches(reader.encoding):
            raise DataError(f"{transfer.name}: is not what the round asked for")
        c_i = self._variates.get(transfer.client)
        try:
            values = reader.values(self._transfers.assemble(transfer), c_i, update.steps)
            follows = known and reader.require_following(values, c_i, update.steps)
        except WireError as error:
            raise DataError(f"{transfer.name}: {error}") from error
        return reader.read(values, c_i, update.steps, update.examples, follows=follows)

    def _absent(self, current: CapturedRound, ups: list[Transfer]) -> list[Flat | None]:
        """The variates of clients without an update in this round; those never heard of have none."""
        here = {transfer.client for transfer in ups}
        known: list[Flat | None] = [c_i for name, c_i in self._variates.items() if name not in here]
        return known + [None] * (current.rules.num_clients - len(here) - len(known))

    def _counted(self, r: int, client: str) -> bool:
        """Whether the server already counts an update of this client."""
        headers = (t.header for t in self._transfers if (t.round, t.client, t.up) == (r, client, False))
        return any(isinstance(header, pb.RoundHeader) and header.counted_round for header in headers)

    def _compare(
        self, current: CapturedRound, layout: Layout, new: Flat, *, certain: bool
    ) -> tuple[str, list[str]]:
        """What the new x and, where it is certain, the new c were compared with, and where they differ."""
        r = current.rules.round
        self._c = new[current.model_bytes :].copy() if certain else None
        try:
            after = self._rounds.read(r + 1, self._c)
        except DataError:
            if self._run_dir is None or r != current.rules.rounds:
                raise
            return self._compare_with_files(self._run_dir, current, layout, new, certain)
        if not after.is_exact(Purpose.MODEL):
            raise DataError(f"round {r + 1}: x was coded with a loss, so it cannot be compared")
        if layout.specs != after.layout.specs:
            self._svr.lose_track()
            self._variates.clear()
            return f"broadcast of round {r + 1}", [_other_svr(layout, after.layout)]
        new = reweighted(layout, new, current.rules.total_weight, after.rules.total_weight)
        # Where a member was evicted in between c is counted anew, without one that a capture does not name.
        certain = certain and after.rules.num_clients == current.rules.num_clients
        comparable = certain and after.c_travelled and after.is_exact(Purpose.CONTROL)
        chosen = layout.indices(*MODEL, *([Purpose.CONTROL] if comparable else []))
        return f"broadcast of round {r + 1}", _differing(layout, new, after.flat, chosen)

    def _compare_with_files(
        self, run_dir: Path, current: CapturedRound, layout: Layout, new: Flat, certain: bool
    ) -> tuple[str, list[str]]:
        comparable = certain and current.is_exact(*MODEL, Purpose.CONTROL)
        model, control = layout.part(*MODEL), layout.part(Purpose.CONTROL)
        wanted = safetensors_files.read(run_dir / "model.safetensors", model, others=True)
        differing = _differing(model, new, wanted, range(len(model.specs)))
        if comparable:
            wanted = safetensors_files.read(run_dir / "control.safetensors", control)
            differing += _differing(control, new[current.model_bytes :], wanted, range(len(control.specs)))
        return f"the run's final {'x and c' if comparable else 'x'}", differing


def _differing(layout: Layout, one: Flat, other: Flat, chosen: list[int] | range) -> list[str]:
    return [
        f"{layout.specs[k].purpose.name.lower()} {layout.specs[k].name} differs"
        for k in chosen
        if layout.raw(one, k).tobytes() != layout.raw(other, k).tobytes()
    ]


def _other_svr(ours: Layout, theirs: Layout) -> str:
    chosen, sent = ([each.specs[k].name for k in each.indices(Purpose.CONTROL)] for each in (ours, theirs))
    return f"S_svr differs: the rule chooses {', '.join(chosen)}; the broadcast has {', '.join(sent)}"


def _indices(capture: Capture) -> dict[str, int]:
    """The index of every client that joined."""
    found = {}
    for message in capture.messages:
        if message.rpc == "Join" and message.content.kind == "reply":
            found[message.client] = pb.JoinReply.FromString(capture.data(message)).index
    return found
