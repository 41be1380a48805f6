"""The model and a training step."""

from __future__ import annotations

from pathlib import Path

from common.data.datasets import Dataset
from common.errors import FedError, RunError
from fedclient.check.findings import Finding, error, failed, ok, skipped, warning
from fedclient.check.server import Speed
from fedclient.config import ClientConfig
from fedclient.rpc.probe import Terms
from fedclient.run import rehearsal

MEMORY_INFO = Path("/proc/meminfo")


def look_at_training(
    config: ClientConfig, terms: Terms, dataset: Dataset | None, link: Speed | None
) -> list[Finding]:
    """Builds the model and, where there are examples, trains for a step."""
    try:
        model = rehearsal.built(terms.seat)
    except (FedError, MemoryError) as reason:
        return [_failed("model", reason), skipped("training", "there is no model")]
    same = ok("model", f"{terms.seat.model.name} has the server's tensors")
    if dataset is None:
        return [same, skipped("training", "there are no examples")]
    try:
        step = rehearsal.step(config, terms.seat, terms.rules, model, dataset)
    except (FedError, MemoryError, RuntimeError, ValueError) as reason:  # What torch says of a plug-in.
        return [same, _failed("training", reason)]
    transfer_s = 0.0 if link is None else link.transfer_s(terms)
    return [same, step_finding(step, transfer_s, available_bytes())]


def _failed(check: str, reason: Exception) -> Finding:
    if isinstance(reason, MemoryError):
        return error(
            check, "there is not enough memory", "a machine with more, or a smaller --batch-size there"
        )
    return failed(check, reason if isinstance(reason, FedError) else RunError(str(reason)))


def step_finding(step: rehearsal.Step, transfer_s: float, available: int | None) -> Finding:
    """What a step has taken, and a round would take; `available` is memory that is left, if that is known."""
    round_s = step.seconds * step.steps_of_round + transfer_s
    found = (
        f"a step of {step.examples} examples takes {step.seconds:.3g} s and {step.peak_bytes >> 20} MB; "
        f"a round of {step.steps_of_round} steps {round_s:.3g} s, of which {transfer_s:.3g} s on the link"
    )
    if available is not None and available < step.peak_bytes // 4:
        found += f"; {available >> 20} MB of memory are left"
        return warning("training", found, "end other programs, or use a machine with more memory")
    return ok("training", found)


def available_bytes() -> int | None:
    """Memory that is left on this machine, apart from what this process has; None where nobody tells."""
    try:
        lines = MEMORY_INFO.read_text().splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith("MemAvailable:")]
    return int(found[0][1]) << 10 if found else None
