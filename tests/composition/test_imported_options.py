from pathlib import Path

from lmtrain.composition.arguments import parse_arguments
from lmtrain.composition.imported_options import imported_folder, imported_options


def imported(folder: Path) -> Path:
    (folder / "experiment").mkdir(parents=True)
    (folder / "experiment" / "imported.yaml").touch()
    return folder


def test_an_imported_folder_brings_its_own_options(tmp_path: Path) -> None:
    arguments = parse_arguments([f"init_from={imported(tmp_path / 'in')}", "seed=3"])
    assert arguments.flags == [f"--config-dir={tmp_path / 'in'}"]
    assert arguments.added == ["experiment=imported"]
    assert arguments.overrides == [f"init_from={tmp_path / 'in'}", "seed=3"]


def test_a_model_that_is_typed_wins_and_the_folder_is_still_searched(tmp_path: Path) -> None:
    given = {"init_from": str(imported(tmp_path / "in")), "model": "imported"}
    assert imported_options(given) == []
    assert imported_folder(given) == str(tmp_path / "in")


def test_a_run_brings_nothing(tmp_path: Path) -> None:
    assert imported_options({"init_from": str(tmp_path)}) == []
    assert imported_folder({}) is None
