"""Who may import whom, and other rules that keep the code findable."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import common

ROOT = Path(__file__).parent.parent
PACKAGES = ("common", "fedserver", "fedclient", "fedwire", "fedlab")
FILES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

MAY_IMPORT = {
    "common": {"common", "fedpvr"},
    "fedserver": {"common", "fedpvr", "fedserver"},
    "fedclient": {"common", "fedpvr", "fedclient"},
    "fedwire": {"common", "fedpvr", "fedwire"},
    "fedlab": {"common", "fedpvr", "fedserver", "fedclient", "fedwire", "fedlab"},
}
ONLY_IN = {
    "click": {"cli.py", "keys_cli.py"},
    "cryptography": {"certificates.py", "authority.py", "signer.py"},
    "grpc": {"server.py", "endpoint.py", "inquiry.py", "transport.py", "channel.py", "crowd.py"},
    "fedpvr": {
        *("wire.py", "manifest.py", "dialogue.py", "parcel.py", "capture.py"),
        *("service.py", "broadcast.py", "status.py", "inquiry.py", "connection.py", "download.py"),
        *("transfers.py", "inspect.py", "replay.py"),
    },
}
WITHOUT_TORCH = [
    *("common/errors.py", "common/config.py", "common/tensors.py", "common/wire.py", "common/partition.py"),
    *(
        f"fedserver/{name}.py"
        for name in ("cli", "server", "endpoint", "service", "federation", "rounds", "status", "inquiry")
    ),
    *("fedclient/cli.py", "fedlab/cli.py"),
]


def imports(path: Path, top_level_only: bool = False) -> set[str]:
    """Full names of the modules a file imports."""
    tree = ast.parse((ROOT / path).read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_go_one_way(path: Path) -> None:
    ours = {name.partition(".")[0] for name in imports(path)} & {*PACKAGES, "fedpvr", "tests"}
    assert ours <= MAY_IMPORT[path.parts[0]]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_each_foreign_library_has_its_place(path: Path) -> None:
    tops = {name.partition(".")[0] for name in imports(path)}
    for library, places in ONLY_IN.items():
        assert library not in tops or path.name in places, f"{library} in {path}"


def _reachable(path: Path, seen: set[Path]) -> set[str]:
    """Everything that importing a file imports at the top level, through our own files."""
    found = imports(path, top_level_only=True)
    for name in list(found):
        for candidate in (Path(*name.split(".")).with_suffix(".py"), Path(*name.split(".")) / "__init__.py"):
            if (ROOT / candidate).exists() and candidate not in seen:
                seen.add(candidate)
                found |= _reachable(candidate, seen)
    return found


@pytest.mark.parametrize("path", WITHOUT_TORCH)
def test_torch_stays_out_of_the_server_and_the_command_lines(path: str) -> None:
    assert "torch" not in {name.partition(".")[0] for name in _reachable(Path(path), set())}


def test_there_is_no_drawer_for_odds_and_ends() -> None:
    assert not [path for path in FILES if path.stem in ("utils", "util", "helpers", "misc")]


def test_files_stay_small() -> None:
    assert not [str(path) for path in FILES if len((ROOT / path).read_text().splitlines()) > 330]


def test_the_installed_common_is_ours() -> None:
    assert Path(common.__file__).parent == ROOT / "common"
