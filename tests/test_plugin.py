"""Plug-ins: only what a file of the current directory defines itself; nothing runs before that is clear."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common import plugin
from common.errors import ConfigError, FedError, RefusedError
from fedclient.site import Site
from tests.test_cli import invoke

MARK = "from pathlib import Path\nPath('ran').write_text(__name__)\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory; what a test imports from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_functions_and_classes_of_a_file_or_a_package_are_loaded(here: Path) -> None:
    (here / "plain_file.py").write_text("import neighbour\ndef f(n): return neighbour.n\nclass C: pass\n")
    (here / "neighbour.py").write_text("n = 3\n")
    (here / "a_package" / "inner").mkdir(parents=True)
    (here / "a_package" / "__init__.py").write_text("def f(n): return 4\n")
    (here / "a_package" / "inner" / "__init__.py").touch()
    (here / "a_package" / "inner" / "deep.py").write_text(
        "from a_package import f as g\ndef f(n): return 5\n"
    )
    assert plugin.load("plain_file:f")(0) == 3
    assert plugin.load("plain_file:C").__name__ == "C"
    assert plugin.load("a_package:f")(0) == 4
    assert plugin.load("a_package.inner.deep:f")(0) == 5
    assert plugin.load("plain_file:f") is plugin.load("plain_file:f"), "a module runs once"


@pytest.mark.parametrize(
    "name", ["os:system", "torch.nn:Linear", "subprocess:run", "no_such:f", "builtins:exec"]
)
def test_code_outside_the_current_directory_cannot_be_named(here: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"no module .* in the current directory"):
        plugin.load(name)


@pytest.mark.parametrize(
    "name", [":f", "m:", "a b:f", "../m:f", "m:f.g", "m:f()", "m::f", ".m:f", "m.:f", "m:f\n"]
)
def test_names_that_are_not_module_and_factory_are_refused(here: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="expected module:factory"):
        plugin.load(name)


@pytest.mark.parametrize(
    ("folder", "file", "name", "message"),
    [
        (".", "json.py", "json:f", "is another module already"),
        (".", "this.py", "this:f", "a module of Python's own"),
        (".", "sys.py", "sys:f", "is another module already"),
        (".", "__main__.py", "__main__:f", "is another module already"),
        ("torch", "__init__.py", "torch:f", "is another module already"),
        (".", "common.py", "common:f", "'common' is a package of FedPVR's own; rename your common.py$"),
        ("Downloads/some_zip", "evil.py", "Downloads.some_zip.evil:f", "no module 'Downloads'"),
        ("Downloads", "evil.py", "Downloads.evil:f", "no module 'Downloads'"),
        (".", "script.py", "script.__builtins__:exec", "no module 'script'"),
        ("test", "nothing.py", "test.regrtest:main", "no module 'test'"),
    ],
)
def test_what_is_refused_has_not_run(here: Path, folder: str, file: str, name: str, message: str) -> None:
    (here / folder).mkdir(parents=True, exist_ok=True)
    (here / folder / file).write_text(f"{MARK}def f(n): pass\n")
    before = set(sys.modules)
    with pytest.raises(ConfigError, match=message):
        plugin.load(name)
    assert not (here / "ran").exists()
    assert set(sys.modules) == before


@pytest.mark.parametrize("factory", ["rmtree", "Path", "shutil", "N", "__builtins__", "missing", "bound"])
def test_what_a_module_only_imports_is_not_its_own(here: Path, factory: str) -> None:
    source = "import shutil\nfrom pathlib import Path\nfrom shutil import rmtree\nN = 3\nbound = 'a'.join\n"
    (here / "helper_of_mine.py").write_text(source)
    with pytest.raises(ConfigError, match="no function or class"):
        plugin.load(f"helper_of_mine:{factory}")


def test_a_client_takes_built_in_names_and_exactly_what_its_site_allows() -> None:
    site = Site(plugins=frozenset({"mine:network"}))
    for name in ("cnn", "resnet8-bn", "mine:network"):
        site.require_model(name)
    site.require_dataset("digits")
    for name in ("mine:other", "mine.sub:network", "other:network"):
        with pytest.raises(RefusedError, match=f"--allow-plugin {name}$"):
            site.require_model(name)
    for name in ("", "lenet", "mine:network ", "mine:f;reboot", "m:f" + "x" * 10_000, "\x1b[2J:f"):
        with pytest.raises(RefusedError, match="not built in here") as caught:
            site.require_dataset(name)
        assert len(str(caught.value)) < 200


def test_what_is_allowed_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("", "a:b c.d:e", "no-name"):
        monkeypatch.setenv("FEDCLIENT_RUN_ALLOW_PLUGIN", text)
        result = invoke("fedclient", "run", "--server", "192.0.2.1:1")
        assert ("got 'no-name'" in result.output) == (text == "no-name")


@pytest.mark.parametrize("expected", ["cnn", "mine:network"])
def test_a_client_that_expects_a_model_takes_no_other(expected: str) -> None:
    site = Site(model=expected, plugins=frozenset({"also:allowed"}))
    site.require_model(expected)
    for name in ("vgg11", "also:allowed", "other:network"):
        with pytest.raises(RefusedError, match=f"takes {expected} only"):
            site.require_model(name)


@pytest.mark.parametrize(
    "flags", [{"model": "lenet"}, {"model": "a b:c"}, {"plugins": frozenset({"digits"})}]
)
def test_a_site_cannot_allow_what_there_cannot_be(flags: dict[str, object]) -> None:
    with pytest.raises(FedError):
        Site(**flags)  # type: ignore[arg-type]
