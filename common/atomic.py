"""Files that are replaced whole, and files that nobody else may read.

After a crash there is the old file or the new one, never a mixture. What holds updates, variates or messages
is private: its owner's alone from the first byte on, whatever the umask says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE = 0o600
"""Mode of a file that only its owner reads; `path.touch(PRIVATE)` makes one."""
USUAL = 0o666
"""Of one that others read too, as far as the umask lets them."""


def make_private(folder: Path) -> None:
    """Makes a folder that only its owner can look into, unless it is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def replacing(path: Path, mode: int = USUAL) -> Iterator[Path]:
    """A scratch file that takes the place of `path`, synced to disk, when the block ends without an error.

    It is there, empty, when the block begins, and has never had more permissions than `mode`.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        scratch.unlink(missing_ok=True)
        os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    except OSError as error:
        # Whoever gave the path knows nothing of the scratch file.
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        yield scratch
        with scratch.open("rb+") as file:
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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
