from lmtrain.errors import ConfigurationError
from lmtrain.run.stored_runs.push_folder import make_push_folder
from lmtrain.storage.hashed_folder import damage
from tests.run.stored_runs.test_checkpoint_source import run_folder


def test_an_archive_holds_the_newest_checkpoint_and_stays_when_the_run_deletes_it(tmp_path):
    run = run_folder(tmp_path / "a", 5, 20)
    (run / ".hidden").write_text("x")
    (run / "link").symlink_to("/etc/hostname")
    folder = make_push_folder(run, "archive")
    for path in (run / "checkpoints" / "step_00000020").iterdir():
        path.unlink()
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    checkpoint = {f"checkpoints/step_00000020/{name}" for name in ("manifest.json", "state.pt")}
    assert names == {"manifest.json", *checkpoint, *(f"attempts/{number}/job.json" for number in (1, 2, 10))}
    assert damage(folder) is damage(folder / "checkpoints" / "step_00000020") is None


def test_an_imported_folder_is_no_run(tmp_path):
    import pytest

    from tests.interop.hugging_face import imported, saved

    saved("llama", tmp_path / "hf")
    imported(tmp_path / "hf", tmp_path / "in")
    with pytest.raises(ConfigurationError, match="is an imported folder; `lmtrain push` sends a run"):
        make_push_folder(tmp_path / "in", "archive")
