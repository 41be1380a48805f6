"""What checks find, and the table of all checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from common.errors import FedError, printable

MOST_SHOWN = 500
"""Characters of a finding: a server's words may be in it."""


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    SKIPPED = "skipped"
    """Not looked at, because of an earlier finding or because there is nothing to look at."""
    WARNING = "warning"
    """A run may go well all the same."""
    ERROR = "error"
    """A run will not."""


CHECKS = {
    "credentials": "certificate, key and token can be read, belong together and are valid, and for how long",
    "proxy": "whether gRPC goes through a proxy that the environment names",
    "address": "the server's name has an address",
    "port": "something listens there, and no firewall is in between",
    "tls": "both sides speak TLS and accept each other's certificate; when the server's expires",
    "access": "the server lets this client in",
    "protocol": "both speak the same version of the protocol",
    "clock": "this machine's clock and the server's agree",
    "run": "what run it is, and that it is prepared",
    "link": "speed each way, and what a round's tensors take",
    "policy": "what this client's flags and its site's rules would refuse in this run",
    "state": "the state directory can be written, and no other client has it",
    "disk": "there is room for the state and an update",
    "files": "enough files may be open at a time",
    "data": "the examples can be read; broken ones are counted and named",
    "classes": "every class here is one of the run, and which ones have no examples here",
    "shape": "the examples have, or can be given, the shape that the run wants",
    "model": "the model that is built here has the server's tensors",
    "training": "a training step, its time and memory, and what a round would take",
}
"""By name, in their order, with what each looks at."""


REMEDIES = {
    "access": "ask whoever runs the server for a new certificate or token",
    "policy": "allow it with the client's flags, or ask for another run",
    "data": "repair the data, or name others with --data or --dataset",
    "shape": "bring the examples to what the run expects, or ask whoever runs it to change the task",
    "model": "install the same code here and at the server",
    "training": "look at the examples: are they scaled as the run expects?",
}
"""For errors that do not say what to do themselves."""


@dataclass(frozen=True)
class Finding:
    """What came of one check."""

    check: str
    level: Level
    found: str
    remedy: str = ""
    """What to do about it."""

    def __post_init__(self) -> None:
        assert self.check in CHECKS, "a check is in the table"


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return _finding(check, Level.OK, found)


def skipped(check: str, why: str) -> Finding:
    """It was not looked at."""
    return _finding(check, Level.SKIPPED, why)


def warning(check: str, found: str, remedy: str) -> Finding:
    """It may go well all the same."""
    return _finding(check, Level.WARNING, found, remedy)


def error(check: str, found: str, remedy: str) -> Finding:
    """It will not go well."""
    return _finding(check, Level.ERROR, found, remedy)


def failed(check: str, reason: FedError | OSError) -> Finding:
    """What an error says; ours have the remedy behind a semicolon."""
    if isinstance(reason, OSError):
        return error(check, f"{reason.filename or 'input or output'}: {reason.strerror}", "see to the file")
    found, _, remedy = str(reason).partition("; ")
    return error(check, found, remedy or REMEDIES.get(check, "ask whoever runs the server"))


def _finding(check: str, level: Level, found: str, remedy: str = "") -> Finding:
    return Finding(check, level, printable(found, MOST_SHOWN), printable(remedy, MOST_SHOWN))
