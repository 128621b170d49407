import math

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.evaluation.core.bundle import read_bundle
from lmtrain.evaluation.core.score import TaskScore, score_core
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.evaluation.bigram import Bigram
from tests.evaluation.core.bundles import AFTER, CHOICES, CORE, write_bundle


def score(folder, **more):
    tokenizer = ByteLevelTokenizer()
    tasks = read_bundle(folder)
    return score_core(Bigram(AFTER), tasks, encode=tokenizer.encode_batch, begin_id=tokenizer.end_of_text_id, **more)


@pytest.mark.parametrize("batch_tokens", [1, 16_384])
def test_a_miniature_scores_what_was_worked_out_by_hand(tmp_path, batch_tokens):
    told: list[TaskScore] = []
    found = score(write_bundle(tmp_path / "bundle"), batch_tokens=batch_tokens, told=told.append)
    assert [(task.label, task.num_right, task.num_items) for task in told] == [
        ("choices", 3, 4),
        ("endings", 2, 4),
        ("contexts", 1, 4),
    ]
    assert found.core == pytest.approx(CORE, abs=1e-12) == 1 / 24
    # sqrt(3/16 / 4) / (1/2), sqrt(1/4 / 4), sqrt(3/16 / 4) / (2/5): all of them over three tasks
    errors = (math.sqrt(3 / 64) * 2, 1 / 4, math.sqrt(3 / 64) * 2.5)
    assert found.standard_error == pytest.approx(math.hypot(*errors) / 3)


def test_a_guess_is_zero_and_no_error_one():
    assert TaskScore(label="a", num_right=1, num_items=4, baseline=0.25).centred == 0.0
    assert TaskScore(label="a", num_right=4, num_items=4, baseline=0.25).centred == 1.0


def test_examples_are_drawn_among_the_items_that_are_kept(tmp_path):
    folder = write_bundle(tmp_path / "bundle", {"choices": ("multiple_choice", 50, CHOICES)}, num_shots=2)
    assert score(folder, max_items=3).tasks[0].num_items == 3
    with pytest.raises(ConfigurationError, match=r"--max-items 2: choices has 2 examples .* nearest valid: 3\."):
        score(folder, max_items=2)
