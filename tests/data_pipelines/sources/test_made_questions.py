import random
from itertools import islice

from data_pipelines.sources.made_questions import KINDS, MadeQuestion, Material, make_questions, material_of

LINES = """
from collections.abc import Iterator, Mapping
from . import there
    def read(self, size=-1):
words words words open open door tables
"""
CODE = f"{LINES}def long({', '.join(f'argument_{n}' for n in range(9))}):\n"
MATERIAL = Material(
    words=["open", "door", "table", "under", "chair"],
    definitions=[("def read(self, size=-1):", "read", "self, size=-1")],
    imports=[("from abc import ABC", "abc")],
)


def test_words_definitions_and_imports_come_from_the_code():
    found = material_of([CODE, CODE], num_words=2)
    assert found.words == ["words", "from"]
    assert found.definitions == [("def read(self, size=-1):", "read", "self, size=-1")]
    assert found.imports == [("from collections.abc import Iterator, Mapping", "collections.abc")]


def answer_of(kind: str, question: str) -> str:
    """Work an answer out from the question's text alone."""
    told = question.partition(": ")[2].split()
    match kind:
        case "repeat":
            return " ".join(told)
        case "reverse":
            return " ".join(told[::-1])
        case "capitals":
            return " ".join(told).upper()
        case "first_or_last":
            return told[0 if "first" in question else -1]
        case "sum":
            return str(sum(int(word.strip("?")) for word in question.split() if word.strip("?").isdigit()))
        case "definition":
            return question.split("`")[1 if question.startswith("Here") else 3].partition("(")[2]
        case _:
            return question.split("`")[1].split()[1]


def test_every_kind_comes_in_turn_with_its_right_answer():
    made = list(islice(make_questions(MATERIAL, seed=1, held_out=False), 300))
    assert {one.kind for one in made} == KINDS.keys()
    assert [(one.kind, one.answer) for one in made] == [(one.kind, answer_of(one.kind, one.question)) for one in made]


def test_held_out_questions_are_a_tenth_and_never_among_the_others():
    words = [f"{first}{second}" for first in "abcdefghij" for second in ("one", "two", "six", "ten")]
    material = Material(words, MATERIAL.definitions, MATERIAL.imports)
    others = {one.question for one in islice(make_questions(material, seed=0, held_out=False), 1000)}
    held_out = {one.question for one in islice(make_questions(material, seed=0, held_out=True), 300)}
    assert not others & held_out
    draw = random.Random(0)
    asked = [MadeQuestion("reverse", *KINDS["reverse"](draw, material)) for _ in range(1000)]
    assert 70 < sum(one.is_held_out for one in asked) < 130
