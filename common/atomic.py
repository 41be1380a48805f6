"""Files that are replaced whole, and files that nobody else may read.

After a crash there is the old file or the new one, never a mixture. What holds updates, variates or messages
is private: its owner's alone from the first byte on, whatever the umask says.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.processes import cores

PRIVATE = 0o600
"""Mode of a file that only its owner reads; `path.touch(PRIVATE)` makes one."""
USUAL = 0o666
"""Of one that others read too, as far as the umask lets them."""


def make_private(folder: Path) -> None:
    """Makes a folder that only its owner can look into, unless it is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


SYNCS = 8
"""Files that are synced at the same time."""


@contextmanager
def replacing(
    path: Path, mode: int = USUAL, *, synced: bool = True, spare: Path | None = None
) -> Iterator[Path]:
    """A scratch file that takes the place of `path`, synced to disk, when the block ends without an error.

    It is there, empty, when the block begins, and has never had more permissions than `mode`; a `spare` file,
    which nobody needs, becomes it as it is, if it is just ours, and private. One that is not `synced`
    survives a killed process; after a power cut it may be torn, unless `sync` was called for it.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if spare is None or not _taken_over(spare, mode, scratch):
            scratch.unlink(missing_ok=True)
            os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    except OSError as error:
        # Whoever gave the path knows nothing of the scratch file.
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        yield scratch
        if synced:
            _sync(scratch)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    if synced:
        _sync(path.parent)


def _taken_over(spare: Path, mode: int, scratch: Path) -> bool:
    """Whether a file could be had for writing over: it has no other name, owner or mode than a new one."""
    try:
        found = spare.lstat()
        if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) != mode:
            return False
        if found.st_nlink != 1 or found.st_uid != os.geteuid():
            return False
        spare.replace(scratch)
    except FileNotFoundError:
        return False
    return True


def sync(paths: Iterable[Path]) -> None:
    """Has files and folders on disk, all at the same time: then one commit of the file system is enough."""
    for _ in cores.threads("sync", SYNCS).map(_sync, [*paths]):
        pass


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_at(file: int, piece: bytes | memoryview, start: int) -> int:
    """Writes all of a piece into an open file from `start` on; returns where it ends."""
    rest = memoryview(piece).cast("B")
    end = start + len(rest)
    while rest:
        rest = rest[os.pwrite(file, rest, end - len(rest)) :]
    return end


def write_bytes(path: Path, data: bytes, mode: int) -> None:
    """Replaces `path` by a file that has never had more permissions than `mode`."""
    with replacing(path, mode) as scratch:
        scratch.write_bytes(data)


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Differs whenever a file was replaced or written to; None without a file."""
    try:
        now = path.stat()
    except OSError:
        return None
    return now.st_mtime_ns, now.st_ino, now.st_size
