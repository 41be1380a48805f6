"""Who may import whom, and other rules that keep the code findable."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import common
from common.algorithms import ALGORITHMS

ROOT = Path(__file__).parent.parent
PACKAGES = ("common", "fedserver", "fedclient", "fedwire", "fedlab")
FILES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

MODULES = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}

MAY_IMPORT = {
    "common": {"common", "fedpvr"},
    "fedserver": {"common", "fedpvr", "fedserver"},
    "fedclient": {"common", "fedpvr", "fedclient"},
    "fedwire": {"common", "fedpvr", "fedwire"},
    "fedlab": {"common", "fedpvr", "fedserver", "fedclient", "fedwire", "fedlab"},
}
ONLY_IN = {
    "click": (
        "common/commandline.py",
        "fedserver/flag_types.py",
        "*/cli.py",
        "fedserver/keys/cli.py",
        "fedclient/keys/cli.py",
    ),
    "fcntl": ("common/locks.py",),
    "cryptography": ("common/access", "fedserver/keys", "fedclient/keys"),
    "grpc": (
        "common/access",
        "fedserver/server.py",
        "fedserver/rpc",
        "fedserver/access",
        "fedserver/console",
        "fedclient/transport",
    ),
    "fedpvr": (
        "common/wire",
        "common/server_step",
        "common/metrics/message.py",
        "common/metrics/drift.py",
        "fedserver/rpc",
        "fedserver/console",
        "fedclient/rpc",
        "fedclient/store",
        "fedwire",
        "fedlab/direct",
    ),
    "starlette": ("fedserver/dashboard",),
    "uvicorn": ("fedserver/dashboard",),
    "tensorboardX": ("fedserver/track/tensorboard_files.py",),
    "ray": ("fedlab/engine/ray_engine.py",),
    "mlflow": ("fedserver/track/mlflow_store.py",),
    "torch": (
        "common/tensors/torch_views.py",
        "common/data",
        "common/models",
        "common/devices",
        "common/evaluate.py",
        "fedserver/worker",
        "fedclient/training",
        "fedclient/evaluation",
        "fedclient/midround",
        "fedclient/measures",
        "fedclient/worth",
        "fedclient/run",
        "fedclient/cli.py",
        "fedclient/own_data.py",
        "fedclient/given.py",
        "fedclient/api",
        "fedlab",
    ),
}
"""Rooms, or files where a room would say too much, that a foreign library may be imported in."""
WITHOUT_TORCH = (
    "common/wire",
    "common/server_step",
    "common/algorithms",
    "common/access",
    "common/records",
    "common/metrics",
    "common/live",
    "fedserver",
    "fedwire",
)
"""Rooms whose import must not bring torch along, except for the worker, which is a process of its own."""
ROUND_PATH = (
    "fedserver/run",
    "fedserver/members",
    "fedserver/rpc",
    "fedserver/live",
    "fedclient/run",
    "fedclient/rpc",
    "fedclient/policy",
    "fedclient/training",
    "common/server_step",
)
MAX_MODULES = 12
MAX_LINES = 250
MAX_FUNCTION_LINES = 45
MAX_UNTYPED = 18
"""Where `dict[str, Any]` is the right word: keyword arguments of commands, JSON before it is checked."""


@cache
def tree(path: Path) -> ast.Module:
    """A file, parsed."""
    return ast.parse((ROOT / path).read_text())


@cache
def imports(path: Path, top_level_only: bool = False) -> frozenset[str]:
    """Full names of the modules a file imports."""
    nodes = tree(path).body if top_level_only else list(ast.walk(tree(path)))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def _tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def test_imports_go_one_way() -> None:
    ours = {*PACKAGES, "fedpvr", "tests"}
    wrong = {str(path): (_tops(path) & ours) - MAY_IMPORT[path.parts[0]] for path in FILES}
    assert not {path: found for path, found in wrong.items() if found}


def test_each_foreign_library_has_its_place() -> None:
    places = [(path, library) for path in FILES for library in _tops(path) & ONLY_IN.keys()]
    assert not [f"{library} in {path}" for path, library in places if not _is_in(path, ONLY_IN[library])]


def _is_in(path: Path, places: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(place) or path.match(place) for place in places)


def _reachable(path: Path, seen: set[Path]) -> frozenset[str]:
    """Everything that importing a file imports at the top level, through our own files."""
    found = imports(path, top_level_only=True)
    for module in found & MODULES.keys():
        if (path := MODULES[module]) not in seen:
            seen.add(path)
            found |= _reachable(path, seen)
    return found


def test_torch_stays_out_of_the_server_and_the_command_lines() -> None:
    without = [
        path
        for path in FILES
        if (_is_in(path, WITHOUT_TORCH) or path.name == "cli.py")
        and not path.is_relative_to("fedserver/worker")
    ]
    found = {str(path): {name.partition(".")[0] for name in _reachable(path, set())} for path in without}
    assert not [path for path, tops in found.items() if "torch" in tops]


def test_there_is_no_drawer_for_odds_and_ends() -> None:
    assert not [path for path in FILES if path.stem in ("utils", "util", "helpers", "misc")]


def test_rooms_files_and_functions_stay_small() -> None:
    rooms = Counter(path.parent for path in FILES if path.name != "__init__.py")
    assert not {str(room): count for room, count in rooms.items() if count > MAX_MODULES}
    long_files = {str(path): len((ROOT / path).read_text().splitlines()) for path in FILES}
    assert not {path: lines for path, lines in long_files.items() if lines > MAX_LINES}
    assert not {name: lines for name, lines in _functions() if lines > MAX_FUNCTION_LINES}


def test_records_have_types() -> None:
    untyped = Counter(
        {
            str(path): sum(
                isinstance(node, ast.Subscript) and ast.unparse(node) == "dict[str, Any]"
                for node in ast.walk(tree(path))
            )
            for path in FILES
        }
    )
    assert untyped.total() <= MAX_UNTYPED, untyped.most_common(20)


def _functions() -> Iterator[tuple[str, int]]:
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_module_imports_itself_by_way_of_others() -> None:
    edges = {name: imports(path) & MODULES.keys() - {name} for name, path in MODULES.items()}
    while leaves := {name for name, others in edges.items() if not others & edges.keys()}:
        edges = {name: others for name, others in edges.items() if name not in leaves}
    assert not edges


def test_nothing_in_the_rounds_path_reaches_through_two_objects_into_a_third() -> None:
    """`board.run.config.rounds` would know how a board, a run and its settings are built."""
    found = {str(path): _far_chains(path) for path in FILES if _is_in(path, ROUND_PATH)}
    assert not {path: far for path, far in found.items() if far}


def _far_chains(path: Path) -> list[list[str]]:
    nodes = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)]
    inner = {id(_owner(node)) for node in nodes}
    chains = [_chain(node) for node in nodes if id(node) not in inner]
    modules = _bound_modules(path)
    return [chain for chain in chains if len(chain) > 3 + (chain[0] == "self") and chain[0] not in modules]


def _bound_modules(path: Path) -> set[str]:
    """What a file calls the modules that it imports; `from a.run import Run` makes no `run` one of them."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = (alias for alias in node.names if _is_module(f"{node.module}.{alias.name}"))
            found |= {alias.asname or alias.name for alias in modules}
    return found


@cache
def _is_module(name: str) -> bool:
    """Whether a full name is that of a module or package, of ours or a foreign one; imports nothing."""
    top, *rest = name.split(".")
    spec = find_spec(top)
    places = [Path(place, *rest) for place in (spec and spec.submodule_search_locations) or ()]
    return any(place.is_dir() or place.with_suffix(".py").is_file() for place in places)


def _chain(node: ast.expr) -> list[str]:
    """a.b(...).c[...].d as its names, a to d; nothing for what does not begin with a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = _owner(node)
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else [""]


def _owner(node: ast.Attribute) -> ast.expr:
    """What an attribute is of; for that of a reply or an item, whom it was asked of or taken from."""
    owner = node.value
    while isinstance(owner, ast.Call | ast.Subscript):
        owner = owner.func if isinstance(owner, ast.Call) else owner.value
    return owner


def test_nothing_outside_asks_which_algorithm_runs() -> None:
    """Tables of the paper do, and nobody else: what differs is a property of the algorithm."""
    places = ("common/algorithms", "fedlab/paper", "fedlab/theory")
    asked = [
        f"{path}:{node.lineno}"
        for path in FILES
        if not _is_in(path, places)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Constant) and side.value in set(ALGORITHMS)
    ]
    assert not asked


def test_only_those_sleep_in_the_rounds_path_who_have_nothing_to_wait_on() -> None:
    sleeping = {
        str(path)
        for path in FILES
        if _is_in(path, ROUND_PATH)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr == "sleep"
    }
    assert sleeping == {
        "fedclient/policy/gate.py",  # For a file that a person of the site writes.
        "fedclient/run/daemon.py",  # Before it calls a server again that was away.
        "fedclient/run/turn.py",  # The same for an update that was damaged on its way.
        "fedserver/live/live_file.py",  # Between two pictures of the run for people.
        "fedserver/run/supervision.py",  # After a look at all clients, however often it is called.
    }


def test_the_installed_common_is_ours() -> None:
    assert Path(common.__file__).parent == ROOT / "common"
