from pathlib import Path
from types import SimpleNamespace

from lmtrain.run.stored_runs import step_texts as module
from lmtrain.run.stored_runs.step_texts import step_texts
from lmtrain.tracking.run_folder import RunFolder


def test_of_a_folder_without_its_data_there_is_no_text(tmp_path: Path) -> None:
    RunFolder(tmp_path / "a").create()
    assert step_texts(tmp_path / "a", 1) == []


def test_the_beginnings_of_the_first_rows_are_returned(tmp_path, monkeypatch) -> None:
    tokenizer = SimpleNamespace(decode=lambda ids: "x" * sum(ids))
    found = SimpleNamespace(tokenizer=tokenizer, rows=SimpleNamespace(ids=[[1], [500], [2], [3], [4]]))
    monkeypatch.setattr(module, "trained_step", lambda run, step: found)
    assert [len(text) for text in step_texts(tmp_path, 3)] == [1, 401, 2, 3]
