import pytest

from data_pipelines.sources.base import Document
from data_pipelines.sources.chat_rows import counted, of_calculation, of_choices, of_messages, spelled


def test_a_choice_is_answered_by_its_letter() -> None:
    messages = of_choices({"question": "2 + 2?", "choices": ["3", "4"], "answer": 1, "subject": ""})
    assert messages[0]["content"] == "2 + 2?\n\n3 = A\n4 = B\n\nAnswer with one letter."
    assert messages[1] == {"role": "assistant", "content": "B"}


def test_a_calculation_has_no_notes_for_a_calculator() -> None:
    messages = of_calculation({"question": "Half of 48?", "answer": "48/2 = <<48/2=24>>24\n#### 24"})
    assert [message["content"] for message in messages] == ["Half of 48?", "48/2 = 24\n#### 24"]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (of_choices({"question": "x", "choices": ["a"], "answer": 3}), "an answer that is none of the choices"),
        (of_choices({"question": "x"}), "no question, choices and answer"),
        (of_calculation({"question": "x"}), "no question and answer"),
        (of_messages({"messages": []}), "no messages"),
    ],
)
def test_a_row_without_a_conversation_says_why(made, why) -> None:
    assert made == why


def test_words_are_spelled_and_their_letters_counted_right() -> None:
    words = ["berry", "strawberry"]
    (row,) = spelled(words, num_rows=1, seed=0)
    assert isinstance(row, Document)
    question, answer = (message["content"] for message in row.messages or ())
    assert answer.replace(", ", "") == question.split()[-1].rstrip(".")
    for row in counted(words, num_rows=20, seed=0):
        assert isinstance(row, Document)
        question, answer = (message["content"] for message in row.messages or ())
        letter, word = question.split()[2], question.split()[5].rstrip("?")
        assert answer.endswith(f"#### {word.count(letter)}")
        assert answer.count("*") == word.count(letter)
    assert list(counted(words, num_rows=5, seed=0)) == list(counted(words, num_rows=5, seed=0))
