"""The notebooks are true: each of them runs from top to bottom, in a kernel as Jupyter has it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
names = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@names
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    assert path.name in (ROOT / "docs" / "python.md").read_text()


@names
@pytest.mark.notebooks
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default")
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    for place in (
        "IPYTHONDIR",
        "JUPYTER_DATA_DIR",
        "JUPYTER_RUNTIME_DIR",
        "JUPYTER_CONFIG_DIR",
        "MPLCONFIGDIR",
    ):
        monkeypatch.setenv(place, str(tmp_path / place))
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(tmp_path)}})
    before = dict(os.environ)
    client.execute()
    assert dict(os.environ) == before
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs) or "own-data" in path.stem
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
