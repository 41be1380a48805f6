"""Files that are replaced whole: after a crash there is the old one or the new one, never a mixture."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A scratch path that takes the place of `path`, synced to disk, when the block ends without an error."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
    with replacing(path) as scratch:
        scratch.unlink(missing_ok=True)
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Differs whenever a file was replaced or written to; None without a file."""
    try:
        now = path.stat()
    except OSError:
        return None
    return now.st_mtime_ns, now.st_ino, now.st_size
