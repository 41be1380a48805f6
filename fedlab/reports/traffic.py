"""The part of a report on what runs sent, beside what FedAvg and SCAFFOLD would have sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from common.errors import StateError
from common.page.charts import Bars
from common.page.page import Page
from common.tensors.safetensors_files import tensors_in
from fedlab.reports.runs import Run
from fedlab.reports.tables import Table

MODEL = "model.safetensors"
EXPLAINED = (
    "Faint bars are not measured: tensors that FedAvg and SCAFFOLD would send of the same model, in full "
    "precision, down and up. FedAvg sends x and y_i; SCAFFOLD also c and c_i of every parameter."
)


def write_traffic(page: Page, runs: Mapping[str, Run]) -> None:
    """Adds it."""
    page.heading("Bytes per client and round, by purpose")
    parts: dict[str, Mapping[str, float]] = {}
    faint: dict[str, Mapping[str, float]] = {}
    for label, run in runs.items():
        parts[label] = {p: count for p, count in run.bytes_per_client_and_round().items() if count}
        for name, others in _others(run).items():
            if others not in faint.values():
                taken = any(each.startswith(name) for each in faint)
                faint[f"{name}, model of {label}" if taken else name] = others
    charts = [Bars(title="down and up together", parts=parts | faint, faint=list(faint))]
    page.charts(charts, wide=True)
    if faint:
        page.text(EXPLAINED, note=True)
    for label, run in runs.items():
        _ledger(page, label, run)


def _others(run: Run) -> dict[str, dict[str, float]]:
    """What others would send a client in a round; nothing where the model is not there or damaged."""
    purposes = {tensor: purpose for _, purpose, tensor in run.by_tensor() if purpose in ("model", "buffer")}
    path = run.path / MODEL
    try:
        tensors, _ = tensors_in(path.read_bytes(), str(path))
    except (OSError, StateError):
        return {}
    sizes: Counter[str] = Counter()
    for name, (_, elements) in tensors.items():
        if name in purposes:
            sizes[purposes[name]] += 2 * elements.nbytes
    if not sizes:
        return {}
    fedavg = {purpose: float(size) for purpose, size in sizes.items()}
    return {"FedAvg would send": fedavg, "SCAFFOLD would send": fedavg | {"control": float(sizes["model"])}}


def _ledger(page: Page, label: str, run: Run) -> None:
    """What every client and every tensor took, over all rounds."""
    clients = [
        [client or "(no seat)", direction, f"{payload:,}", f"{encoded:,}"]
        for client, directions in run.by_client().items()
        for direction, (payload, encoded) in directions.items()
    ]
    tensors = [
        [tensor, purpose, direction, f"{payload:,}", f"{encoded:,}"]
        for (direction, purpose, tensor), (payload, encoded) in run.by_tensor().items()
    ]
    page.table(
        Table(["client", "direction", "payload", "encoded"], clients),
        folded=f"{label}: bytes by client, all rounds",
    )
    page.table(
        Table(["tensor or message", "purpose", "direction", "payload", "encoded"], tensors),
        folded=f"{label}: bytes by tensor, all rounds",
    )
