"""All targets by name."""

from __future__ import annotations

from tests.fuzz import captures, client, files, frames, keys, server, sites
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    **frames.TARGETS,
    **client.TARGETS,
    **server.TARGETS,
    **captures.TARGETS,
    **files.TARGETS,
    **keys.TARGETS,
    **sites.TARGETS,
}
