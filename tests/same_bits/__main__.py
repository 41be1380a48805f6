"""`python -m tests.same_bits BASE`: ends with 1 if a federation of this tree differs from that of BASE."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tests.same_bits.cases import CASES, MIXED
from tests.same_bits.compare import compare
from tests.same_bits.federation import Run, federate, refusal
from tests.same_bits.forker import Forker, RunFailure
from tests.same_bits.revision import ROOT, check_out

AT_A_TIME = 2
SHOWN = 4
"""Differences of a case that are printed."""


@dataclass(frozen=True)
class Check:
    """Two runs that must have the same results."""

    name: str
    base: Run
    ours: Run


@dataclass(frozen=True)
class Verdict:
    """What came of a check: `word` is equal, refused, changed, DIFFERS, UNCHANGED or FAILED."""

    word: str
    lines: list[str]

    @property
    def good(self) -> bool:
        """Whether it is as it should be."""
        return self.word.islower()


def checks(only: str) -> list[Check]:
    """All checks, or those whose names have this pattern."""
    found = []
    for case in CASES:
        reference = Run(case, "base", "base")
        found.append(Check(f"{case} simulated", Run(case, "base", None), Run(case, "ours", None)))
        found.append(Check(f"{case} grpc", reference, Run(case, "ours", "ours")))
        if case in MIXED:
            found.append(Check(f"{case} base server", reference, Run(case, "base", "ours")))
            found.append(Check(f"{case} base clients", reference, Run(case, "ours", "base")))
    return [check for check in found if only in check.name or fnmatchcase(check.name, only)]


def judged(check: Check, folder: Path, base: Future[Path], ours: Future[Path], expected: bool) -> Verdict:
    """Waits for both runs and compares them."""
    mixed = check.ours.clients not in (None, check.ours.server)
    try:
        found = compare(base.result(), ours.result())
    except RunFailure as failure:
        refused = refusal(folder / check.ours.folder) if mixed else None
        return Verdict("refused", [refused]) if refused else Verdict("FAILED", str(failure).splitlines())
    except OSError as error:
        return Verdict("FAILED", [f"{error.filename}: {error.strerror}"])
    notes = [f"note: {'; '.join(found.notes)}"] if found.notes else []
    if found.differences:
        return Verdict("changed" if expected else "DIFFERS", _shortened(found.differences) + notes)
    if expected and not mixed:
        return Verdict("UNCHANGED", ["was expected to change", *notes])
    return Verdict("equal", ["; ".join([found.size, *notes])])


def _shortened(lines: list[str]) -> list[str]:
    return lines[:SHOWN] + ([f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])


def checked(
    trees: dict[str, Path], folder: Path, only: str, changed: Sequence[str]
) -> Generator[tuple[Check, Verdict]]:
    """Runs what is needed, two federations at a time, and yields each verdict when it is known."""
    wanted = checks(only)
    with ExitStack() as stack:
        pool = ThreadPoolExecutor(AT_A_TIME)
        stack.callback(pool.shutdown, cancel_futures=True)
        # Closed before the pool is waited for: runs that are under way fail at once.
        forkers = {name: stack.enter_context(closing(Forker(tree))) for name, tree in trees.items()}
        runs: dict[Run, Future[Path]] = {}
        for check in wanted:
            for run in (check.base, check.ours):
                if run not in runs:
                    runs[run] = pool.submit(federate, run, forkers, folder / run.folder)
        for check in wanted:
            expected = check.name in changed or check.base.case in changed
            yield check, judged(check, folder, runs[check.base], runs[check.ours], expected)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.same_bits", description=__doc__)
    parser.add_argument("base", metavar="BASE", help="revision to compare this tree with")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="only checks with this in their names")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the run directories and logs here")
    parser.add_argument(
        "--expect-changed",
        action="append",
        default=[],
        metavar="CASE",
        help="a case whose results were changed on purpose, and must differ; repeatable",
    )
    arguments = parser.parse_args()
    wanted = checks(arguments.only)
    if not wanted:
        parser.error(f"--only {arguments.only}: no check has such a name")
    known = {name for check in wanted for name in (check.name, check.base.case)}
    if unknown := set(arguments.expect_changed) - known:
        parser.error(f"--expect-changed: {unknown.pop()!r} is not checked; the cases are {', '.join(CASES)}")
    if arguments.keep is not None and arguments.keep.exists() and any(arguments.keep.iterdir()):
        parser.error(f"--keep {arguments.keep} is not empty; choose a new folder")
    return arguments


def main() -> None:
    """Compares and says what came of it."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    width = max(len(check.name) for check in checks(arguments.only))
    verdicts: dict[str, Verdict] = {}
    with tempfile.TemporaryDirectory(prefix="same-bits-") as scratch:
        base = Path(scratch, "base")
        print(f"base is {check_out(arguments.base, base)[:12]}, ours is this tree as it is", flush=True)
        folder = (arguments.keep or Path(scratch, "runs")).absolute()
        trees = {"base": base, "ours": ROOT}
        with closing(checked(trees, folder, arguments.only, arguments.expect_changed)) as results:
            for check, verdict in results:
                verdicts[check.name] = verdict
                first, *others = verdict.lines
                print(f"{check.name:{width}}  {verdict.word:9}  {first}", flush=True)
                print("".join(f"{'':{width}}  {'':9}  {line}\n" for line in others), end="", flush=True)
    bad = {name: verdict for name, verdict in verdicts.items() if not verdict.good}
    took_s = time.monotonic() - started
    print(f"{len(verdicts) - len(bad)} of {len(verdicts)} as they should be ({took_s:.0f} s)")
    for name, verdict in bad.items():
        print(f"  {name:{width}}  {verdict.word:9}  {verdict.lines[0]}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
