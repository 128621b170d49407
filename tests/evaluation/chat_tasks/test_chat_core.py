import json

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.evaluation.chat_tasks.chat_core import LABELS, read_tasks
from lmtrain.evaluation.chat_tasks.chat_items import LetterItem
from tests.evaluation.chat_tasks.copies import write_copies


def test_every_data_set_is_read_in_its_own_layout(tmp_path):
    tasks = {task.label: task for task in read_tasks(write_copies(tmp_path / "c"), only=LABELS, may_run_code=True)}
    assert {label: (len(task.items), task.baseline) for label, task in tasks.items()} == {
        "arc_easy": (2, 0.25),
        "arc_challenge": (2, 0.25),
        "mmlu": (4, 0.25),
        "gsm8k": (2, 0.0),
        "humaneval": (1, 0.0),
        "spelling": (256, 0.0),
        "arithmetic": (256, 0.0),
    }
    first, second = tasks["arc_easy"].items
    assert isinstance(first, LetterItem)
    assert isinstance(second, LetterItem)
    assert (first.gold, first.letters, second.gold, second.letters) == (1, "ABC", 0, "AB")
    assert first.text == "Q\n\nx = A\ny = B\nz = C\n\nAnswer with one letter."


def test_what_is_missing_or_damaged_is_told_with_its_way_out(tmp_path):
    folder = write_copies(tmp_path / "c")
    with pytest.raises(
        ConfigurationError, match=r"humaneval runs code .*--run-code, or leave it out: --tasks arc_easy,"
    ):
        read_tasks(folder)
    with pytest.raises(ConfigurationError, match=r"--tasks mmlo is no chat task.*Did you mean 'mmlu'"):
        read_tasks(folder, only=["mmlo"])
    with pytest.raises(DataError, match=r"has no mmlu/all/test\*.parquet or .jsonl for mmlu; copy"):
        read_tasks(tmp_path, only=["mmlu"])
    with pytest.raises(DataError, match=r"has no words_alpha.txt, a word a line, for spelling"):
        read_tasks(tmp_path, only=["spelling"])
    file = folder / "gsm8k" / "test.jsonl"
    for content, said in (
        ("{", "is damaged"),
        ("", "no rows"),
        (json.dumps({"question": "a"}), "row 1 has no answer of type str; its columns: question"),
        (json.dumps({"question": "a", "answer": "b"}), "row 1 is no item of gsm8k: answer has no number after ####"),
    ):
        file.write_text(content)
        with pytest.raises(DataError, match=said):
            read_tasks(folder, only=["gsm8k"])
