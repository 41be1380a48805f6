"""What a server is told of a failure here: the reason without the paths of this machine.

A path can name people, projects and patients. It stays in the client's own log.
"""

from __future__ import annotations

import re
import site
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

MOST = 500
"""Characters of a reason."""
_STANDS_FOR_PATH = "[a path of this client]"
_WORD = r"[^\s/\\'\"`<>|,;()]"
_PATH = re.compile(
    # Folders and files may have blanks in their names: words up to the next slash, or to an ending like .png.
    rf"(?:~|[A-Za-z]:|{_WORD}+)?[/\\]{_WORD}*(?:(?: {_WORD}+){{0,4}}?(?:[/\\]{_WORD}*|\.\w{{1,5}}\b))*"
)


def told(reason: str, data_dir: str = "data") -> str:
    """A reason as the server gets to know it."""
    for place in sorted(_places(data_dir), key=len, reverse=True):
        reason = reason.replace(place, "/")
    return _PATH.sub(_STANDS_FOR_PATH, reason)[:MOST]


def _places(data_dir: str) -> set[str]:
    """Where this process is at home; names with blanks in them are found here whole."""
    found = {sys.prefix, sys.base_prefix, *site.getsitepackages(), *sys.path, data_dir}
    for place in (Path.cwd, Path.home, Path(data_dir).absolute, tempfile.gettempdir):
        with suppress(OSError, RuntimeError):  # There may be no such place any more.
            found.add(str(place()))
    absolute = {place for place in found if len(place) > 1 and Path(place).is_absolute()}
    return absolute | ({f"{data_dir}/"} if data_dir else set())
