"""This machine: the state directory, the disk below it, open files."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from common.locks import lock
from fedclient.check.findings import Finding, error, ok, warning
from fedclient.flags import STATE, Flags

COPIES = 4
"""Of an update: that in the state directory, the one that replaces it, and two variates, each smaller."""
LEAST_BYTES = 1 << 20
PLENTY = 5
FILES_NEEDED, FILES_ENOUGH = 64, 256


def place_of(flags: Flags) -> tuple[str, Path]:
    """The name and the state directory that a client with these flags would have now."""
    if flags.state_root is None:
        return flags.own_name, flags.state_dir or STATE / flags.own_name
    slots = (flags.state_root / f"client-{number}" for number in count(1))
    free = next(slot for slot in slots if not is_locked(slot))
    return free.name, free


def is_locked(folder: Path) -> bool:
    """Whether a client has a state directory. Looks without keeping others out."""
    try:
        with (folder / "lock").open() as file:
            return not lock(file, shared=True)
    except OSError:
        return False


@dataclass(frozen=True)
class Disk:
    """What trying has told of a directory."""

    folder: Path
    """Where the trial was: the state directory, or what there is of the way to it."""
    free: int
    unwritable: str = ""
    """Why nothing can be written."""
    full: str = ""
    """Why not enough can."""


def try_disk(folder: Path, needed: int) -> Disk:
    """Reserves so many bytes in a file that nobody sees, and gives them back."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(there).free
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            if needed > free:  # Where a file system cannot reserve, it would be written full.
                return Disk(there, free, full=f"{free >> 20} MB are free")
            try:
                os.posix_fallocate(file.fileno(), 0, needed)
            except OSError as reason:
                return Disk(there, free, full=reason.strerror or "full")
    except OSError as reason:
        return Disk(there, free, unwritable=reason.strerror or "not writable")
    return Disk(there, free)


def state_finding(folder: Path, disk: Disk, locked: bool) -> Finding:
    """The state directory can be written, and is nobody else's."""
    if disk.unwritable:
        return error(
            "state", f"{disk.folder} cannot be written: {disk.unwritable}", "choose another --state-dir"
        )
    if locked:
        found = f"{folder} is in use by another client, which goes on undisturbed"
        return warning(
            "state", found, "give a second client its own --name; there is no more to do for this one"
        )
    new = "" if disk.folder == folder.absolute() else ", where it will be made"
    return ok("state", f"{folder} can be written{new}")


def needed_bytes(up_bytes: int) -> int:
    """What a client of a run with such updates writes."""
    return COPIES * up_bytes + LEAST_BYTES


def disk_finding(disk: Disk, needed: int) -> Finding:
    """There is room."""
    found = f"{disk.free >> 20} MB free, a client needs {max(needed >> 20, 1)} MB"
    remedy = "make room, or choose another --state-dir"
    if disk.full:
        return error("disk", f"no room for {max(needed >> 20, 1)} MB in {disk.folder}: {disk.full}", remedy)
    return warning("disk", found, remedy) if disk.free < PLENTY * needed else ok("disk", found)


def files_finding(limit: int) -> Finding:
    """Enough files may be open at a time: connections and what libraries open count too."""
    found = f"{limit} may be open at a time"
    if limit < FILES_ENOUGH:
        kind = error if limit < FILES_NEEDED else warning
        return kind("files", found, f"raise it: ulimit -n {FILES_ENOUGH * 4}")
    return ok("files", found)


def open_files_limit() -> int:
    """Of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
