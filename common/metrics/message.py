"""A site's counts as they travel, checked when they come from a peer."""

from __future__ import annotations

import math
from collections import Counter

from common.errors import WireError
from common.records.sites import SiteCounts
from fedpvr.v1 import federation_pb2 as pb

MAX_CLASSES = 300
"""Of a run whose sites evaluate: counts of so many fit into a message."""
MAX_CELLS = MAX_CLASSES**2
"""Entries of a confusion matrix that are not zero; in a message they have up to six bytes each."""
MAX_TOGETHER = 4_000_000
"""Entries of the matrices of all clients, which a checkpoint has in its note: tens of megabytes."""
MAX_EXAMPLES = 1 << 40
MAX_LOSS_SUM = 1e18


def to_message(counts: SiteCounts, num_classes: int) -> pb.SiteCounts:
    """The counts as they travel."""
    return pb.SiteCounts(
        examples=counts.examples,
        loss_sum=math.nan if counts.loss_sum is None else counts.loss_sum,
        cells=[right * num_classes + found for right, found, _ in counts.confusion],
        counts=[number for _, _, number in counts.confusion],
        pairs=counts.pairs,
    )


def supports_in(message: pb.SiteCounts, num_classes: int) -> list[int]:
    """Examples of each class that occurs in counts."""
    support: Counter[int] = Counter()
    for cell, number in zip(message.cells, message.counts, strict=True):
        support[cell // num_classes] += number
    return [*support.values()]


def from_message(message: pb.SiteCounts, num_classes: int) -> SiteCounts:
    """The counts in a message; raises unless they are of this many classes and add up."""
    cells, numbers, pairs = list(message.cells), list(message.counts), tuple(message.pairs)
    if not 1 <= message.examples <= MAX_EXAMPLES:
        raise _refused(f"examples must be from 1 to {MAX_EXAMPLES}, got {message.examples}")
    if len(cells) != len(numbers) or len(cells) > MAX_CELLS:
        raise _refused(f"{len(cells)} cells need as many counts, at most {MAX_CELLS}, got {len(numbers)}")
    if cells != sorted(set(cells)) or (cells and cells[-1] >= num_classes**2):
        raise _refused(f"cells must ascend, below {num_classes} x {num_classes}")
    if 0 in numbers or sum(numbers) != message.examples:
        raise _refused(f"the counts add up to {sum(numbers)}, and there are {message.examples} examples")
    confusion = tuple((*divmod(cell, num_classes), n) for cell, n in zip(cells, numbers, strict=True))
    _require_possible(pairs, confusion, message.examples, num_classes)
    loss = message.loss_sum if math.isfinite(message.loss_sum) else None
    if loss is not None and abs(loss) > MAX_LOSS_SUM:
        raise _refused(f"loss_sum must be at most {MAX_LOSS_SUM:g}, got {loss:g}")
    return SiteCounts(examples=message.examples, loss_sum=loss, confusion=confusion, pairs=pairs)


def _require_possible(
    pairs: tuple[int, ...], confusion: tuple[tuple[int, int, int], ...], examples: int, num_classes: int
) -> None:
    """Raises for more pairs than there are; none at all are none that the site wants to tell."""
    expected = 1 if num_classes == 2 else num_classes
    if len(pairs) not in (0, expected):
        raise _refused(f"pairs must be {expected} numbers, or none, got {len(pairs)}")
    support = dict.fromkeys(range(num_classes), 0)
    for right, _, number in confusion:
        support[right] += number
    for k, won in enumerate(pairs, start=num_classes - len(pairs)):
        most = 2 * support[k] * (examples - support[k])
        if won > most:
            raise _refused(f"class {k} has {most // 2} pairs with others, got {won / 2:g} that are won")


def _refused(problem: str) -> WireError:
    return WireError.broken_contract(f"evaluation: {problem}")
