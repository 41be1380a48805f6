"""Reads a sweep's file; what is wrong with it is said by file, table and key."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import NoReturn

from common.errors import ConfigError, FedError
from common.records import form
from common.records.base import FormError
from fedlab.engine.cells import Cell
from fedlab.sweep.form import Choices, Method, Report, Search, Settings, Sweep
from fedlab.sweep.patterns import require_patterns
from fedlab.sweep.plan import Plan, combinations, named
from fedserver.config import RunConfig

Configured = Callable[[Cell], RunConfig]
"""Makes settings of a cell's flags, as `fedlab simulate` does, and raises for those that cannot work."""
KNOWN = {each.name for each in fields(RunConfig)} | {"preset"}
ELSEWHERE = {
    "seed": "the seeds of all runs are in [report]",
    "data_dir": "give --data-dir to the command",
    "init": "[prepare] makes the model that all runs start from",
    "init_missing": "[prepare] makes the model that all runs start from",
}
"""Settings that a sweep gives to its runs itself."""


def read_sweep(path: Path, configured: Configured) -> Sweep:
    """The sweep in a file, checked down to the last run."""
    try:
        table = _with_underscores(tomllib.loads(path.read_text()))
        sweep = form.read(Sweep, table)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error
    except FormError as error:
        raise ConfigError(f"{path}: {error}; docs/how-to/sweep.md has an example") from error
    check = _Check(path)
    check.keys(table)
    check.settings(sweep)
    check.report(sweep)
    check.runs(sweep, configured)
    return sweep


def with_seeds(sweep: Sweep, seeds: int | None) -> Sweep:
    """The same with another number of seeds, if one is given."""
    return sweep if seeds is None else replace(sweep, report=replace(sweep.report, seeds=seeds))


def _with_underscores(table: Mapping[str, object]) -> dict[str, object]:
    """Keys may be written as flags are, with hyphens; names of methods stay."""
    found: dict[str, object] = {}
    for key, value in table.items():
        if key == "methods" and isinstance(value, Mapping):
            found[key] = {n: _with_underscores(v) if isinstance(v, Mapping) else v for n, v in value.items()}
        else:
            inner = _with_underscores(value) if isinstance(value, Mapping) else value
            found[key.replace("-", "_")] = inner
    return found


class _Check:
    """What can be wrong with a file; every error says where."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _fail(self, table: str, problem: str) -> NoReturn:
        raise ConfigError(f"{self._path}, {table}: {problem}" if table else f"{self._path}: {problem}")

    def _known(self, table: str, keys: Iterable[str], known: Collection[str], kind: str = "setting") -> None:
        for key in keys:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
                self._fail(table, f"unknown {kind} {key!r}; {hint}")

    def keys(self, table: Mapping[str, object]) -> None:
        """No key apart from those that mean something."""
        for name, kind in (("", Sweep), ("search", Search), ("report", Report)):
            inner = table.get(name, {}) if name else table
            if isinstance(inner, Mapping):
                known = {each.name for each in fields(kind)}
                self._known(f"[{name}]" if name else "", inner, known, "key")

    def settings(self, sweep: Sweep) -> None:
        """Every setting exists and is said in one place."""
        tables: dict[str, Iterable[str]] = {"[settings]": sweep.settings, "[grid]": sweep.grid}
        tables |= {"[search.values]": sweep.search.values, "[prepare]": sweep.prepare or {}}
        for name, method in sweep.methods.items():
            tables |= {f"[methods.{name}]": method.settings, f"[methods.{name}.search]": method.search}
        for table, names in tables.items():
            self._known(table, names, KNOWN)
            for name in ELSEWHERE.keys() & set(names):
                self._fail(table, f"{name} cannot stand here: {ELSEWHERE[name]}")
        if not sweep.methods:
            self._fail("", "expected at least one method, a table [methods.NAME]")
        lists = [("[grid]", sweep.grid), ("[search.values]", sweep.search.values)]
        lists += [(f"[methods.{name}.search]", method.search) for name, method in sweep.methods.items()]
        for table, choices in lists:
            for name, values in choices.items():
                if not values or len(set(values)) < len(values):
                    self._fail(table, f"{name}: expected different values, got {list(values)}")
        for name, method in sweep.methods.items():
            self._apart(name, method, sweep.grid, sweep.search.values)

    def _apart(self, name: str, method: Method, grid: Choices, values: Choices) -> None:
        places: dict[str, Choices | Settings] = {"[grid]": grid, "[search.values]": values}
        places |= {f"[methods.{name}]": method.settings, f"[methods.{name}.search]": method.search}
        seen: dict[str, str] = {}
        for table, settings in places.items():
            for setting in settings:
                if (other := seen.setdefault(setting, table)) != table:
                    self._fail(table, f"{setting} is in {other} too; keep one of them")

    def report(self, sweep: Sweep) -> None:
        """The tables can be made."""
        said = sweep.report
        self._known("[report]", [sweep.baseline], sweep.methods, "method as baseline")
        for target in said.targets:
            if not 0 < target <= 1:
                self._fail("[report]", f"targets are accuracies above 0 and at most 1, got {target}")
        if said.stop_at_target and not said.targets:
            self._fail("[report]", "stop_at_target needs targets, such as targets = [0.9]")
        if not said.all_seeds or len(set(said.all_seeds)) < len(said.all_seeds):
            self._fail("[report]", f"seeds: expected a number or different ones, got {list(said.all_seeds)}")
        if sweep.search.seeds > len(said.all_seeds):
            self._fail("[search]", f"seeds are {sweep.search.seeds}, [report] has {len(said.all_seeds)}")

    def runs(self, sweep: Sweep, configured: Configured) -> None:
        """Every run has settings that can work; a search has something to choose by."""
        plan = Plan(sweep=sweep, data_dir=RunConfig.data_dir)
        if (first := plan.first()) is not None:
            self._configured("[prepare]", first, configured)
        for name in sweep.methods:
            for point in plan.points():
                for tried in combinations(sweep.searched(name)):
                    place = ", ".join(filter(None, [f"[methods.{name}]", named(point), named(tried)]))
                    cell = Cell.of(plan.settings(name, point, tried, 0))
                    config = self._configured(place, cell, configured)
                    if tried:
                        self._searchable(sweep, config)

    def _searchable(self, sweep: Sweep, config: RunConfig) -> None:
        if not config.validation:
            self._fail("[search]", "it chooses by validation accuracy; give validation in [settings]")
        if (sweep.search.rounds or config.rounds) < 2:
            why = "validation accuracy is that of the model which a round begins with"
            self._fail("[search]", f"rounds must be at least 2: {why}")

    def _configured(self, table: str, cell: Cell, configured: Configured) -> RunConfig:
        try:
            config = configured(cell)
            require_patterns(config)
        except FedError as error:
            self._fail(table, str(error))
        return config
