"""Lets as many clients of one machine train at a time as it has cores.

More at once only get in each other's way: ten clients on two cores finish a round sooner if two train and
eight wait. The gate is a folder of one user with a file for each core; who trains has as many of them locked
as it has threads, and the kernel frees the locks of a client that is killed. Nobody looks again and again:
clients stand in a queue at the door, which is one more lock, and who is in it waits for all cores at once. Of
several clients in one process one trains at a time, because torch has one random generator for all threads.

    door                 locked by the client whose turn is next
    core-0, core-1, ...  locked by those who train
    client-0, ...        locked by those who share the cores by `--threads auto`, for as long as they run
"""

from __future__ import annotations

import itertools
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import torch

from common.locks import lock
from common.models.build import DRAWING


@contextmanager
def turn_to_train(threads: int | None) -> Iterator[None]:
    """Holds cores for this many of torch's threads while the block runs; see `free_cores`."""
    with DRAWING, free_cores(threads) as found:
        torch.set_num_threads(found)
        yield


@contextmanager
def free_cores(threads: int | None) -> Iterator[int]:
    """Waits until cores are free for this many threads, and holds them while the block runs.

    None: as many as there are for each client that shares them. Yields how many it is.
    """
    cores, folder = len(os.sched_getaffinity(0)), _folder()
    wanted = threads or max(1, cores // max(1, _company(folder)))
    with ExitStack() as held:
        if folder is not None:
            with suppress(OSError):  # Where no file can be made training is only slower.
                _wait_for_cores(min(wanted, cores), [folder / f"core-{k}" for k in range(cores)], held)
        yield wanted


def _wait_for_cores(number: int, paths: Sequence[Path], held: ExitStack) -> None:
    with _opened(paths[0].with_name("door")) as door:
        lock(door, wait=True)
        for file in _take(number, paths):
            held.enter_context(file)


@contextmanager
def sharing_cores() -> Iterator[None]:
    """Makes this client one of those that share the cores while the block runs."""
    with ExitStack() as held:
        folder = _folder()
        if folder is not None:
            with suppress(OSError):
                held.enter_context(_first_free(folder))
        yield


def _first_free(folder: Path) -> IO[bytes]:
    for number in itertools.count():
        seat = _opened(folder / f"client-{number}")
        if lock(seat):
            return seat
        seat.close()
    raise AssertionError("there is no end of numbers")


def _company(folder: Path | None) -> int:
    """How many share the cores at the moment; without a folder nobody knows, and there is a core for one."""
    if folder is None:
        return sys.maxsize
    taken = 0
    for path in folder.glob("client-*"):
        with _opened(path) as seat:
            taken += not lock(seat, shared=True)
    return taken


def _folder() -> Path | None:
    """Where the files are; None where there can be no gate."""
    folder = Path(tempfile.gettempdir()) / f"fedpvr-gate-{os.getuid()}"
    try:
        try:
            found = folder.stat()
        except FileNotFoundError:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.stat()
    except OSError:
        return None
    # In a folder of somebody else everybody would wait for as long as that one likes.
    return folder if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() else None


def _opened(path: Path) -> IO[bytes]:
    """A file to be locked, which is made where there is none; nothing is ever written to it."""
    return path.open("ab", buffering=0)


def _take(number: int, paths: Sequence[Path]) -> Iterator[IO[bytes]]:
    """Locks so many of these files, those first that are free."""
    taken: list[Path] = []
    for path in paths:
        if number == len(taken):
            return
        file = _opened(path)
        if lock(file):
            taken.append(path)
            yield file
        else:
            file.close()
    for _ in range(number - len(taken)):
        file = _First([path for path in paths if path not in taken]).wait()
        taken.append(Path(file.name))
        yield file


class _First:
    """Waits for several locks at once, in a thread for each; those that come later are let go again."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._mutex = threading.Lock()
        self._there = threading.Event()
        self._file: IO[bytes] | None = None
        self._over = False
        for path in paths:
            threading.Thread(target=self._wait_for, args=(path,), daemon=True).start()

    def wait(self) -> IO[bytes]:
        """The first file that could be locked."""
        try:
            self._there.wait()
        finally:
            with self._mutex:
                self._over = True
                file = self._file
        assert file is not None, "somebody has come"
        return file

    def _wait_for(self, path: Path) -> None:
        file = _opened(path)
        lock(file, wait=True)
        with self._mutex:
            if self._over or self._file is not None:
                file.close()
                return
            self._file = file
        self._there.set()
