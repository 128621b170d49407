from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.stored_runs.own_folder import require_own_folder, require_pipeline_folder


@pytest.mark.parametrize(
    ("there", "name", "message"),
    [
        ("pp/pipeline.json", "pp", r"pp is a pipeline's folder; give the run another run\.name"),
        ("pp/base/status.json", "pp", r"pp holds other runs, as .*pp/base; give the run another run\.name"),
        (
            "notes/run.json",
            "notes/a/b",
            r"notes is a run's folder and holds no other; nearest valid: run\.name=notes-a-b",
        ),
        ("base/import.json", "base", r"base is an imported folder; give the run another run\.name"),
    ],
)
def test_a_run_has_its_folder_to_itself(tmp_path: Path, there: str, name: str, message: str) -> None:
    file = tmp_path / there
    (file.parent / "weights").mkdir(parents=True)
    file.write_text("{}")
    with pytest.raises(ConfigurationError, match=message):
        require_own_folder(tmp_path / name, root=tmp_path)
    require_own_folder(tmp_path / "pp" / "other", root=tmp_path)
    require_own_folder(tmp_path / "notes", root=tmp_path)


def test_a_pipeline_begins_in_no_run_and_no_sweep(tmp_path: Path) -> None:
    require_pipeline_folder(tmp_path)
    for what, file in (("run", "run.json"), ("sweep", "sweep.json")):
        (tmp_path / file).write_text("{}")
        with pytest.raises(ConfigurationError, match=rf"is a {what}'s folder; give the pipeline another run\.name"):
            require_pipeline_folder(tmp_path)
        (tmp_path / file).unlink()
