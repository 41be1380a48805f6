"""What server, clients and inspector share: errors, events, tensors, the wire, the algorithms, data.

Whoever imports it gives numerical libraries one thread, in this process and in those it starts, unless the
environment says otherwise. They read these variables when they are loaded, and every command imports this
before any of them. BLAS threads spin while they wait for each other: that took a quarter to half of the
server's processor time. Torch has the threads that `fedclient run --threads` says. Programs that use
`fedlab.simulate` and the like keep the threads that they have.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module

_LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_OURS = tuple(_library for _library in _LIBRARIES if _library not in os.environ)
os.environ.setdefault("OMP_NUM_THREADS", "1")
for _library in _LIBRARIES:
    os.environ.setdefault(_library, os.environ["OMP_NUM_THREADS"])


def public(package: str, name: str, modules: Mapping[str, str]) -> object:
    """An object of a package that programs use as a library, out of the module that has it.

    Such a program has its own idea of threads: what was set above is taken back before torch is loaded.
    """
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    for library in _OURS:
        os.environ.pop(library, None)
    return getattr(import_module(modules[name]), name)
