"""Libraries that only some commands need, and the extras of this package that bring each."""

from __future__ import annotations

import importlib.util

from common.errors import ConfigError

EXTRAS = {
    "PIL": ("client", "lab"),
    "torch": ("client", "lab"),
    "torchvision": ("client", "lab"),
    "hpack": ("wire",),
    "matplotlib": ("lab",),
    "starlette": ("dashboard",),
    "uvicorn": ("dashboard",),
    "ray": ("ray",),
    "mlflow": ("track", "mlflow"),
    "tensorboardX": ("track", "tensorboard"),
}


def require(library: str, usual: str = "") -> None:
    """Raises if a library is not installed; does not import it. `usual` is the extra of the program."""
    if importlib.util.find_spec(library) is None:
        raise _absent(library, usual)


def missing(error: ModuleNotFoundError, usual: str = "") -> ConfigError | None:
    """What to tell of an import that failed; None if no extra would have brought it."""
    library = (error.name or "").partition(".")[0]
    return _absent(library, usual) if library in EXTRAS else None


def remedy(library: str, usual: str = "") -> str:
    """The command that installs a library."""
    extra = usual if usual in EXTRAS[library] else EXTRAS[library][0]
    return f"say: pip install 'fedpvr[{extra}]'"


def _absent(library: str, usual: str) -> ConfigError:
    return ConfigError(f"this needs {library}, which is not installed; {remedy(library, usual)}")
