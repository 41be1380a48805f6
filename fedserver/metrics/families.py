"""What Prometheus is told of a run: every metric with its meaning."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

from common.live.view import RunView
from fedserver.metrics import values
from fedserver.metrics.family import Series


@dataclass(frozen=True)
class Family:
    """A metric of a run; `fill` adds its values."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]
    fill: Callable[[RunView, Series], None]
    fold: Callable[[float, float], float] = operator.add
    """What becomes of several values that get the same labels."""


GAUGE, COUNTER = "gauge", "counter"
FAMILIES = (
    Family(
        "fedpvr_run_info", GAUGE, "1; what is trained.", ("algorithm", "model", "dataset"), values.run_info
    ),
    Family("fedpvr_run_up", GAUGE, "Whether the server's process lives.", (), values.run_up),
    Family(
        "fedpvr_phase", GAUGE, "1 for what the run is doing, 0 for the others.", ("phase",), values.phases
    ),
    Family("fedpvr_round", GAUGE, "The open round, or the last one.", (), values.now("round")),
    Family("fedpvr_rounds", GAUGE, "Rounds of the whole run.", (), values.now("rounds")),
    Family("fedpvr_rounds_closed_total", COUNTER, "Rounds that have closed.", (), values.closed),
    Family(
        "fedpvr_round_opened_timestamp_seconds",
        GAUGE,
        "When the open round was opened; missing while none is.",
        (),
        values.opened,
    ),
    Family("fedpvr_clients", GAUGE, "Clients by what they do.", ("state",), values.states),
    Family(
        "fedpvr_client_up",
        GAUGE,
        "Whether a client is there; `other`: how many.",
        ("client",),
        values.clients_up,
    ),
    Family(
        "fedpvr_client_last_seen_timestamp_seconds",
        GAUGE,
        "When a client was last heard of; missing while a call of it is open. `other`: the earliest.",
        ("client",),
        values.last_seen,
        min,
    ),
    Family(
        "fedpvr_updates_total",
        COUNTER,
        "What became of the updates of those who were drawn: accepted, late (the deadline was over), "
        "declined by the client, rejected (counts for nothing) or missing.",
        ("client", "outcome"),
        values.updates,
    ),
    Family(
        "fedpvr_payload_bytes_total",
        COUNTER,
        "Bytes of the messages of closed rounds by what they were for.",
        ("direction", "purpose"),
        values.sent,
    ),
    Family(
        "fedpvr_client_bytes_total",
        COUNTER,
        "The same by client.",
        ("client", "direction"),
        values.sent_by_client,
    ),
    Family(
        "fedpvr_socket_bytes_total",
        COUNTER,
        "Bytes on the TCP connections in closed rounds, where the kernel can tell.",
        ("direction",),
        values.on_sockets,
    ),
    Family("fedpvr_accuracy", GAUGE, "Of x, by the last evaluation.", (), values.newest("accuracy")),
    Family("fedpvr_loss", GAUGE, "Mean cross-entropy of the same.", (), values.newest("loss")),
    Family(
        "fedpvr_train_loss", GAUGE, "Mean training loss of the last round.", (), values.newest("train_loss")
    ),
    Family(
        "fedpvr_validation_accuracy",
        GAUGE,
        "Mean over the clients that keep a validation share.",
        (),
        values.newest("validation_accuracy"),
    ),
    Family(
        "fedpvr_site_metric",
        GAUGE,
        "x at a site, on data of its own, by the last evaluation there. `other`: the least.",
        ("client", "metric"),
        values.at_sites,
        min,
    ),
    Family(
        "fedpvr_drift_diversity",
        GAUGE,
        "Drift diversity xi of the last round. `other`: the greatest.",
        ("layer",),
        values.drift,
        max,
    ),
    Family(
        "fedpvr_control_norm",
        GAUGE,
        "Euclidean norm of c after the last round.",
        (),
        values.control_norms,
        values.the_last,
    ),
    Family(
        "fedpvr_certificate_expiry_timestamp_seconds",
        GAUGE,
        "Until when the server's certificate is valid.",
        (),
        values.expiry,
    ),
)
ROUND_SECONDS = (
    "fedpvr_round_seconds",
    "histogram",
    "What rounds took: from opening to close (round), of the client that trained longest (train), and the "
    "evaluation (evaluate).",
    "phase",
)
BUILD_INFO = ("fedpvr_build_info", GAUGE, "1; the release that tells this.", "version")
