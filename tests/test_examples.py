"""Every script and notebook in examples/ runs in a folder that holds the default text and nothing else."""

import json
from pathlib import Path

import pytest

from tests import forked, tiny

EXAMPLES = tiny.PROJECT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.fixture(scope="module")
def folder_with_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare the default text once; each script finds it under the link `data`."""
    folder = tmp_path_factory.mktemp("data")
    _run("from lmtrain.cli.main import main; raise SystemExit(main(['prepare']))", folder)
    return folder / "data"


@pytest.fixture
def folder(tmp_path: Path, folder_with_data: Path) -> Path:
    (tmp_path / "data").symlink_to(folder_with_data)
    return tmp_path


def _run(code: str, folder: Path) -> str:
    script = folder / "script.py"
    script.write_text(code)
    ended = forked.run(script, [], folder=folder, environment=tiny.environment())
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_runs(script: Path, folder: Path) -> None:
    assert len(script.read_text().splitlines()) <= 40
    assert _run(script.read_text(), folder).strip()


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook: Path, folder: Path) -> None:
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert _run("\n".join("".join(cell["source"]) for cell in cells), folder) is not None
