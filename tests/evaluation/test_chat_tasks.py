"""The chat tasks on copies small enough to work out by hand."""

import json
import math
import re
from types import SimpleNamespace

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.evaluation import chat_tasks
from lmtrain.evaluation.chat_tasks import (
    LABELS,
    read_tasks,
    score_task,
    spelling_items,
)
from lmtrain.evaluation.core import CoreScore
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.evaluation.bigram import Bigram
from tests.evaluation.copies import write_copies


def test_every_data_set_is_read_in_its_own_layout(tmp_path):
    tasks = {task.label: task for task in read_tasks(write_copies(tmp_path / "c"), only=LABELS)}
    assert {label: (len(task.items), task.baseline) for label, task in tasks.items()} == {
        "arc_easy": (2, 0.25),
        "arc_challenge": (2, 0.25),
        "mmlu": (4, 0.25),
        "gsm8k": (2, 0.0),
        "spelling": (256, 0.0),
    }
    first, second = tasks["arc_easy"].items
    assert (first.right, first.letters, second.right, second.letters) == ("B", "ABC", "A", "AB")
    assert first.text == "Q\n\nx = A\ny = B\nz = C\n\nAnswer with one letter."


def test_what_is_missing_or_damaged_is_told_with_its_way_out(tmp_path):
    folder = write_copies(tmp_path / "c")
    with pytest.raises(ConfigurationError, match=r"--tasks: .* got mmlo.*Did you mean 'mmlu'"):
        read_tasks(folder, only=["mmlo"])
    with pytest.raises(DataError, match=r"has no mmlu/all/test\*.parquet or .jsonl with rows for mmlu; copy"):
        read_tasks(tmp_path, only=["mmlu"])
    with pytest.raises(DataError, match=r"has no words_alpha.txt"):
        read_tasks(tmp_path, only=["spelling"])
    file = folder / "gsm8k" / "test.jsonl"
    for content, said in (
        ("{", r"gsm8k: test\.jsonl:1 is not JSON"),
        ("", "has no gsm8k/main/test.* with rows for gsm8k"),
        (json.dumps({"question": "a"}), r"test\.jsonl:1, an item of gsm8k, is damaged \('answer'\)"),
        (
            json.dumps({"question": "a", "answer": "b"}),
            r"is damaged \(answer has no number after ####\)",
        ),
    ):
        file.write_text(content)
        with pytest.raises(DataError, match=said):
            read_tasks(folder, only=["gsm8k"])


# After a space B is the likeliest letter, so that it is answered everywhere.
AFTER = {" ": {"B": 0.5, "A": 0.2, "C": 0.1, "!": 0.15}}
LOADED = LoadedModel(name="bigram", model=Bigram(AFTER), tokenizer=ByteLevelTokenizer())


@pytest.fixture
def asked(monkeypatch):
    """Let a model answer two to every question; return the questions."""
    questions: list[str] = []

    def answer(_, conversations, *, num_new_tokens):
        assert num_new_tokens == 9
        texts = [messages[0]["content"] for messages in conversations]
        questions.extend(texts)
        return [SimpleNamespace(text="So 7. #### 2") for _ in texts]

    monkeypatch.setattr(chat_tasks, "answer_all", answer)
    return questions


def test_a_miniature_scores_what_was_worked_out_by_hand(tmp_path, asked):
    tasks = read_tasks(write_copies(tmp_path / "copies"))
    scores = {task.label: score_task(LOADED, task, num_new_tokens=9) for task in tasks}
    assert tuple(scores) == LABELS
    right = {label: (score.num_right, score.num_items) for label, score in scores.items() if label != "spelling"}
    assert right == {"arc_easy": (1, 2), "arc_challenge": (1, 2), "mmlu": (3, 4), "gsm8k": (1, 2)}
    # (1/2 - 1/4) / (3/4) = 1/3 twice, (3/4 - 1/4) / (3/4) = 2/3, 1/2 and the share of words with two of a letter
    spelling = scores["spelling"].accuracy
    assert 0.2 < spelling < 0.7
    core = CoreScore(tuple(scores.values()))
    assert core.core == pytest.approx((1 / 3 + 1 / 3 + 2 / 3 + 1 / 2 + spelling) / 5)
    errors = (math.sqrt(1 / 8) / 0.75, math.sqrt(1 / 8) / 0.75, math.sqrt(3 / 64) / 0.75, math.sqrt(1 / 8))
    assert core.standard_error == pytest.approx(math.hypot(*errors, scores["spelling"].standard_error) / 5)


def test_items_are_drawn_by_a_fixed_seed(tmp_path, asked):
    (task,) = read_tasks(write_copies(tmp_path / "copies"), only=["spelling"])
    for _ in range(2):
        score = score_task(LOADED, task, num_new_tokens=9, max_items=3)
        assert score.num_items == 3
    assert asked[:3] == asked[3:]


def test_made_questions_have_their_right_answers():
    for item in spelling_items(["banana", "kiwi", "no"]):
        letter, word = re.findall(r"many (\w) are in (\w+)\?", item.text)[0]
        assert word != "no"
        assert item.right == str(word.count(letter))
