"""Prints docs/exit-codes.md: how every command ends, and what a script can do about it."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import ExitCode

ALL = "all commands"


@dataclass(frozen=True)
class Exit:
    """A row of the table."""

    code: ExitCode
    command: str
    meaning: str
    remedy: str = "nothing"


EXITS = (
    Exit(ExitCode.DONE, ALL, "What was asked for is done."),
    Exit(
        ExitCode.DONE,
        "fedserver run",
        "The run is finished, with everybody or without those whom `--deadline`, `--lease` or "
        "`--clients-per-round` left out.",
    ),
    Exit(
        ExitCode.DONE,
        "fedserver run, fedclient run",
        "SIGTERM ended the process, and its state is saved.",
        "the same command goes on from there",
    ),
    Exit(ExitCode.FAILED, ALL, "It could not be done; the last line says why.", "what that line says"),
    Exit(
        ExitCode.FAILED,
        "fedserver run",
        "The run cannot go on: too few clients are left, a disk is full, or `--canary` found somebody who is "
        "not ready. What was counted stays.",
        "mend the cause; the same command goes on from there",
    ),
    Exit(
        ExitCode.FAILED,
        "fedclient run",
        "The client cannot take part any longer: no server answered for `--give-up` seconds, or one side "
        "refused the other.",
        "mend the cause; the same command joins again",
    ),
    Exit(ExitCode.FAILED, "fedclient check", "The site is not ready.", "each error has a line with a remedy"),
    Exit(
        ExitCode.FAILED,
        "fedclient outbox verify",
        "The log of what has left is not as it was written.",
        "ask who changed it",
    ),
    Exit(
        ExitCode.FAILED,
        "fedserver health",
        "The server does not serve, or nobody answers.",
        "wait, or start it",
    ),
    Exit(
        ExitCode.FAILED,
        "fedwire stats, fedwire diff, fedwire replay",
        "They differ: capture and ledger, two captures, or what the server sent and what follows from the "
        "updates.",
        "the lines above say where",
    ),
    Exit(
        ExitCode.USAGE,
        ALL,
        "A flag, argument, setting or file of settings cannot work. Nothing was done.",
        "what the line says; it names the flag",
    ),
    Exit(
        ExitCode.LEFT_OUT,
        "fedserver run, fedlab simulate",
        "The run is finished and the model is there, but it went on without a client that no setting leaves "
        "out: it left and did not come back, or never had an update to give.",
        "`fedlab card` says who is in the model; decide whether to use it",
    ),
    Exit(
        ExitCode.DIVERGED,
        "fedserver run, fedlab simulate, fedlab centralised",
        "Training left the finite numbers, at too many clients or in x itself. The rounds before count, "
        "and the event `run_diverged` has the round.",
        "a smaller `--eta-l` or `--eta-g`, in a new directory; the same command would diverge again",
    ),
    Exit(
        ExitCode.INTERRUPTED,
        ALL,
        "Ctrl-C ended it. A server or client has saved its state.",
        "the same command goes on from there",
    ),
)
INTRODUCTION = """\
# Exit codes

Written by `python -m fedlab.documents.exit_codes` (`make docs`) from the table that the code has.

Every command ends with one of these numbers, and every error is one line on standard error: what was
expected, what came, what to do. A traceback is a fault of ours.

| code | command | meaning | what to do |
|---:|---|---|---|
"""
END = """
With `fedclient run --replicas N` the code is that of the first replica that failed, and 128 + S for one that
signal S killed: 137 after `kill -9`, or where the system ran out of memory.

A container with `restart: on-failure` starts a server again that ended with 3; it finds the run finished and
ends the same way. To wait for a run in a script, look at the code:

```sh
fedserver run --num-clients 2 --run-dir runs/a
case $? in
    0) echo "finished" ;;
    3) fedlab card runs/a/model.safetensors ;;   # finished, and somebody is not in it
    4) echo "diverged" ;;                         # the same settings would do so again
    2) echo "wrong settings" ;;
    *) echo "not finished; the same command goes on" ;;
esac
```
"""


def document() -> str:
    """The whole document."""
    return INTRODUCTION + "".join(_row(each) for each in EXITS) + END


def _row(each: Exit) -> str:
    command = each.command
    if command != ALL:
        command = ", ".join(f"`{name}`" for name in command.split(", "))
    return f"| {each.code.value} | {command} | {each.meaning} | {each.remedy} |\n"


if __name__ == "__main__":
    print(document(), end="")
