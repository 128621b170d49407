from pathlib import Path

from lmtrain.tracking.run_folder import RunFolder, ask_to_stop, forget_stop, is_asked_to_stop


def test_a_wish_is_there_until_it_is_forgotten_or_a_new_attempt_begins(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.create()
    assert not is_asked_to_stop(folder.path)
    for forget in (lambda: forget_stop(folder.path), lambda: folder.start_attempt("", [])):
        ask_to_stop(folder.path)
        assert is_asked_to_stop(folder.path)
        forget()
        assert not is_asked_to_stop(folder.path)
    forget_stop(folder.path)
