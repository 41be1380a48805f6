"""Rounds as a capture shows them: the rules in their headers, and x and c as clients saw them."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import ConfigError, DataError, WireError, WrongRunError
from common.server_step.rules import Rules
from common.tensors.layout import Flat, Layout, Purpose
from common.wire.codecs import DERIVED
from common.wire.encoding import Encoding
from common.wire.messages import is_gradient
from fedpvr.v1 import federation_pb2 as pb
from fedwire.transfers import Transfer, Transfers

MODEL = (Purpose.MODEL, Purpose.BUFFER)


@dataclass(frozen=True)
class CapturedRound:
    """A round's rules and its broadcast."""

    rules: Rules
    encoding: Encoding
    """How x, the buffers and c travelled."""
    flat: Flat
    """x, the buffers and c."""

    @property
    def layout(self) -> Layout:
        """Of `flat`."""
        return self.encoding.layout

    @property
    def model_bytes(self) -> int:
        """Where x and the buffers end and c begins."""
        return self.layout.part(*MODEL).num_bytes

    @property
    def c_travelled(self) -> bool:
        """Whether c was sent, rather than left for clients to compute."""
        return not _is_derived(self.encoding)

    def is_exact(self, *purposes: Purpose) -> bool:
        """Whether tensors of these purposes are the server's own, not coded with a loss."""
        return not any(each.codec.lossy for each in self.encoding.part(*purposes).tensor_encodings)


class CapturedRounds:
    """Finds the rounds of a capture."""

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self._layout: Layout | None = None
        """The same in all rounds, but for an S_svr that is chosen round by round."""

    def read(self, r: int, c: Flat | None) -> CapturedRound:
        """A round from a download that is whole, preferably one that has c in it.

        `c` is what the round before led to, for a round whose clients computed it; None if it is not known.
        """
        problem = f"round {r}: no client's download is in the capture"
        downs = [t for t in self._transfers if not t.up and t.round == r]
        for transfer in sorted(downs, key=lambda t: _is_derived(t.encoding)):
            try:
                flat = self._transfers.values(transfer)
            except DataError as error:
                problem = str(error)
                continue
            encoding = transfer.encoding.part(*MODEL, Purpose.CONTROL)
            rules = _rules(transfer)
            if rules.evaluation_only or rules.gradient_only:
                continue  # It is the last x, or the first, which nobody trains on.
            found = CapturedRound(rules, encoding, flat[: encoding.layout.num_bytes].copy())
            self._require_sound(found)
            if not found.c_travelled and r > 1:
                if c is None:
                    raise DataError(f"round {r}: c was derived from a round that is not in the capture")
                found.flat[found.model_bytes :] = c
            return found
        raise DataError(problem)

    def first(self) -> CapturedRound:
        """What came before round 1, where clients answered with their gradient; c is zero."""
        for transfer in self._transfers:
            if not transfer.up and is_gradient(transfer.header):
                encoding = transfer.encoding.part(*MODEL, Purpose.CONTROL)
                flat = self._transfers.values(transfer)[: encoding.layout.num_bytes]
                found = CapturedRound(_rules(transfer), encoding, flat.copy())
                self._require_sound(found)
                return found
        raise DataError("before round 1: no client's download is in the capture")

    def _require_sound(self, found: CapturedRound) -> None:
        """Raises for a round that no server could have gone on from."""
        layout, r = found.layout, found.rules.round
        same = layout.part(*MODEL) if found.rules.svr_budget else layout
        self._layout = self._layout or same
        if same.specs != self._layout.specs:
            raise DataError(f"round {r}: the tensors are other ones than those of earlier rounds")
        models = {(s.name, s.dtype, s.shape) for s in layout.specs if s.purpose is Purpose.MODEL}
        controls = [layout.specs[k] for k in layout.indices(Purpose.CONTROL)]
        if any((s.name, s.dtype, s.shape) not in models for s in controls):
            raise DataError(f"round {r}: c is not of the model")


def _rules(broadcast: Transfer) -> Rules:
    """The rules of a round, all of which the server's step needs."""
    assert isinstance(broadcast.header, pb.RoundHeader)
    try:
        rules = Rules.from_header(broadcast.header)
        rules.require_known_step()
    except (ConfigError, WireError, WrongRunError) as error:
        raise DataError(f"{broadcast.name}: the server's step cannot be done again: {error}") from error
    return rules


def _is_derived(encoding: Encoding) -> bool:
    return any(tensor_encoding.codec == DERIVED for tensor_encoding in encoding.tensor_encodings)
