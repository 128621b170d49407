"""CORE on bundles small enough to work out by hand."""

import math
import re
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.evaluation.core import CoreScore, CoreTask, is_right, read_bundle, rows_of, score_core
from lmtrain.evaluation.scored_rows import RowScore
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.evaluation.bigram import Bigram
from tests.evaluation.bundles import AFTER, CHOICES, CORE, write_bundle


def test_tasks_come_in_the_order_of_the_bundle_with_their_baselines(tmp_path):
    tasks = read_bundle(write_bundle(tmp_path / "bundle"))
    assert [(task.label, task.baseline, task.delimiter) for task in tasks] == [
        ("choices", 0.5, " "),
        ("endings", 0.0, " "),
        ("contexts", 0.6, " "),
    ]
    assert [task.label for task in read_bundle(tmp_path / "bundle", only=("contexts",))] == ["contexts"]


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("core.yaml", None, "is not a CORE bundle"),
        ("core.yaml", "icl_tasks: 3", "core.yaml or eval_meta_data.csv is damaged"),
        ("core.yaml", "icl_tasks: [{label: a}]", "is damaged (KeyError"),
        ("eval_meta_data.csv", None, "is not a CORE bundle"),
        ("eval_meta_data.csv", "a,b\n1,2\n", "is damaged (KeyError"),
        ("eval_data/some/endings.jsonl", None, "lacks the data of endings (endings.jsonl) below eval_data/"),
        ("eval_data/some/choices.jsonl", "{\n", "choices.jsonl:1 is not JSON"),
        (
            "eval_data/some/choices.jsonl",
            '{"query": "Q", "gold": 0}\n',
            "choices.jsonl:1, a multiple_choice item, is damaged ('choices')",
        ),
        (
            "eval_data/some/choices.jsonl",
            '{"query": "Q", "choices": ["a"], "gold": 1}\n',
            "choices.jsonl:1, a multiple_choice item, is damaged (1)",
        ),
        ("eval_data/some/choices.jsonl", "", "must have at least 1 items"),
    ],
)
def test_a_damaged_bundle_says_what_is_wrong(tmp_path, file, text, said):
    folder = write_bundle(tmp_path / "bundle")
    (folder / file).unlink() if text is None else (folder / file).write_text(text)
    with pytest.raises(DataError, match=re.escape(said)):
        [task.items() for task in read_bundle(folder)]


def test_a_file_outside_the_bundle_and_an_unknown_label_are_refused(tmp_path):
    folder = write_bundle(tmp_path / "bundle")
    with pytest.raises(ConfigurationError, match=r"--tasks: choice must be .* Did you mean 'choices'"):
        read_bundle(folder, only=("choice",))
    config = folder / "core.yaml"
    config.write_text(config.read_text().replace("some/endings.jsonl", "../../secret.jsonl"))
    with pytest.raises(DataError, match="must be inside"):
        read_bundle(folder)


CHOICE = [{"query": f"q{n}", "choices": ["no", "yes"], "gold": n % 2} for n in range(4)]
SCHEMA = [{"context_options": [f"x{n}", f"yy{n}"], "continuation": "end", "gold": n % 2} for n in range(4)]
LANGUAGE = [{"context": f" c{n} ", "continuation": f"d{n}"} for n in range(4)]


def task(kind, num_shots=1):
    return CoreTask(label=kind, kind=kind, file=Path(), num_shots=num_shots, delimiter="->", baseline=0.0)


def shown(kind, items, **more):
    """Return the text of each row before its scored part, and the scored part, without the first id."""
    tokenizer = ByteLevelTokenizer()
    spans = rows_of(task(kind, **more), items, 0, encode=tokenizer.encode_batch, begin_id=tokenizer.end_of_text_id)
    assert all(span.ids[0] == tokenizer.end_of_text_id for span in spans)
    return [(tokenizer.decode(span.ids[1 : span.start]), tokenizer.decode(span.ids[span.start :])) for span in spans]


# random.Random(1234).sample([1, 2, 3], 1) draws item 2 for item 0.
@pytest.mark.parametrize(
    ("kind", "items", "rows"),
    [
        ("multiple_choice", CHOICE, [("q2->no\n\nq0->", "no"), ("q2->no\n\nq0->", "yes")]),
        ("schema", SCHEMA, [("x2->end\n\nx", "0->end"), ("x2->end\n\nyy", "0->end")]),
        ("language_modeling", LANGUAGE, [("c2->d2\n\nc0->", "d0")]),
    ],
)
def test_an_item_follows_its_solved_example_and_is_scored_where_its_answers_differ(kind, items, rows):
    assert shown(kind, items) == rows


def test_the_lowest_mean_wins_not_the_lowest_sum():
    scores = [RowScore(nats=3.0, num_tokens=1, is_likeliest=False), RowScore(4.0, 4, is_likeliest=False)]
    assert is_right(task("multiple_choice"), {"gold": 1}, scores)
    assert not is_right(task("language_modeling"), {}, scores)


def score(folder, **more):
    tokenizer = ByteLevelTokenizer()
    tasks, first = read_bundle(folder), tokenizer.end_of_text_id
    return CoreScore(tuple(score_core(Bigram(AFTER), tasks, encode=tokenizer.encode_batch, begin_id=first, **more)))


@pytest.mark.parametrize("batch_tokens", [1, 16_384])
def test_a_miniature_scores_what_was_worked_out_by_hand(tmp_path, batch_tokens):
    found = score(write_bundle(tmp_path / "bundle"), batch_tokens=batch_tokens)
    assert [(task.label, task.num_right, task.num_items) for task in found.tasks] == [
        ("choices", 3, 4),
        ("endings", 2, 4),
        ("contexts", 1, 4),
    ]
    assert found.core == pytest.approx(CORE, abs=1e-12) == 1 / 24
    # sqrt(3/16 / 4) / (1/2), sqrt(1/4 / 4), sqrt(3/16 / 4) / (2/5): all of them over three tasks
    errors = (math.sqrt(3 / 64) * 2, 1 / 4, math.sqrt(3 / 64) * 2.5)
    assert found.standard_error == pytest.approx(math.hypot(*errors) / 3)


def test_examples_are_drawn_among_the_items_that_are_kept(tmp_path):
    folder = write_bundle(tmp_path / "bundle", {"choices": ("multiple_choice", 50, CHOICES)}, num_shots=2)
    assert score(folder, max_items=3).tasks[0].num_items == 3
    with pytest.raises(ConfigurationError, match=r"--max-items: must be above 2"):
        score(folder, max_items=2)
