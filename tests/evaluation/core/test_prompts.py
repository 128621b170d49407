from pathlib import Path

import pytest

from lmtrain.evaluation.core.bundle import CoreTask
from lmtrain.evaluation.core.prompts import is_right, rows_of
from lmtrain.evaluation.scored_rows import RowScore
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

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


def test_equal_choices_are_scored_on_their_last_id():
    items = [{"query": "q", "choices": ["same", "same"], "gold": 0}]
    assert shown("multiple_choice", items, num_shots=0) == [("q->sam", "e")] * 2


def test_the_lowest_mean_wins_not_the_lowest_sum():
    scores = [RowScore(nats=3.0, num_tokens=1, is_likeliest=False), RowScore(4.0, 4, is_likeliest=False)]
    assert is_right(task("multiple_choice"), {"gold": 1}, scores)
    assert not is_right(task("language_modeling"), {}, scores)
