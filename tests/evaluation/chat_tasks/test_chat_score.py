import math

import pytest

from lmtrain.evaluation.chat_tasks.chat_core import CORE_LABELS, read_tasks
from lmtrain.evaluation.chat_tasks.chat_score import score_task
from lmtrain.evaluation.core.score import CoreScore
from tests.evaluation.bigram import Bigram
from tests.evaluation.chat_tasks.copies import SUM, write_copies

# After a colon B is likeliest of all letters, so that it is answered everywhere.
AFTER = {":": {"B": 0.5, "A": 0.2, "C": 0.1, "!": 0.15}}


def answered(texts):
    """Two is the number in every answer, and the sum is right."""
    return [f"```python\n{SUM}    return a + b\n```" if text == SUM else "So 7. #### 2" for text in texts]


@pytest.mark.parametrize("batch_tokens", [1, 16_384])
def test_a_miniature_scores_what_was_worked_out_by_hand(tmp_path, batch_tokens):
    tasks = read_tasks(write_copies(tmp_path / "copies"), may_run_code=True)
    scores = {
        task.label: score_task(
            Bigram(AFTER),
            task,
            prompt=lambda text: [*text.encode(), ord(":")],  # beyond the context of 64: its end is read
            letter=ord,
            write=answered,
            batch_tokens=batch_tokens,
        )
        for task in tasks
    }
    assert tuple(scores) == CORE_LABELS
    right = {label: (score.num_right, score.num_items) for label, score in scores.items() if label != "spelling"}
    assert right == {"arc_easy": (1, 2), "arc_challenge": (1, 2), "mmlu": (3, 4), "gsm8k": (1, 2), "humaneval": (1, 1)}
    # (1/2 - 1/4) / (3/4) = 1/3 twice, (3/4 - 1/4) / (3/4) = 2/3, 1/2, 1 and the share of words with two of a letter
    spelling = scores["spelling"].accuracy
    assert 0.2 < spelling < 0.7
    core = CoreScore(tuple(scores.values()))
    assert core.core == pytest.approx((1 / 3 + 1 / 3 + 2 / 3 + 1 / 2 + 1 + spelling) / 6)
    errors = (math.sqrt(1 / 8) / 0.75, math.sqrt(1 / 8) / 0.75, math.sqrt(3 / 64) / 0.75, math.sqrt(1 / 8), 0.0)
    assert core.standard_error == pytest.approx(math.hypot(*errors, scores["spelling"].standard_error) / 6)


def test_items_are_drawn_by_a_fixed_seed(tmp_path):
    (task,) = read_tasks(write_copies(tmp_path / "copies"), only=["arithmetic"])
    asked: list[str] = []

    def write(texts):
        asked.extend(texts)
        return [""] * len(texts)

    score = score_task(Bigram({}), task, prompt=lambda _: [0], letter=ord, write=write, max_items=3, batch_tokens=64)
    assert (score.num_right, score.num_items, len(asked)) == (0, 3, 3)
    assert not task.is_core
    again = list(asked)
    score_task(Bigram({}), task, prompt=lambda _: [0], letter=ord, write=write, max_items=3, batch_tokens=64)
    assert asked[3:] == again
