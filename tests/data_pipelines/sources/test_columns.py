import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.columns import Column, column_of
from lmtrain.errors import ConfigurationError, DataError

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def test_the_column_is_text_unless_one_is_named():
    assert column_of(text_column=None, messages_column=None) == Column("text")
    assert column_of(text_column="body", messages_column=None) == Column("body")
    assert column_of(text_column=None, messages_column="chat") == Column("chat", is_messages=True)


def test_two_columns_are_refused():
    with pytest.raises(
        ConfigurationError, match=r"source\.text_column=a has no effect beside source\.messages_column=b"
    ):
        column_of(text_column="a", messages_column="b")


def test_a_missing_column_is_refused_with_those_there_are():
    with pytest.raises(
        DataError, match=r"source\.text_column=txt is not a column of a\.csv: it has text, id\. Did you mean 'text'\?"
    ):
        Column("txt").require_in(["text", "id"], table="a.csv")
    with pytest.raises(DataError, match=r"source\.messages_column=chat is not a column .* it has none\."):
        Column("chat", is_messages=True).require_in([], table="a.csv")


def test_a_table_of_conversations_is_told_apart_from_one_without_text():
    for name in ("messages", "conversations"):
        with pytest.raises(DataError, match=rf"it has {name}, id\. .* are read with source\.messages_column={name}\."):
            Column("text").require_in([name, "id"], table="chats.jsonl")
    with pytest.raises(DataError, match=r"it has instruction, output\. In one column, a conversation is a list of \{"):
        Column("messages", is_messages=True).require_in(["instruction", "output"], table="alpaca.jsonl")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"text": "a", "id": 1}, Document("n", "a")),
        ({"text": ""}, Document("n", "")),
        ({"text": None}, Skipped("n", "null text")),
        ({"txt": "a"}, Skipped("n", "no text in the row")),
        ({"text": 3}, Skipped("n", "text is int instead of text")),
        ({"text": ["a"]}, Skipped("n", "text is list instead of text")),
    ],
)
def test_a_row_is_a_document_or_says_why_not(row, expected):
    assert Column("text").document(row, "n") == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (CHAT, Document("n", "", tuple(CHAT))),
        ('[{"role": "user", "content": "Hi"}]', Document("n", "", (CHAT[0],))),
        (None, Skipped("n", "null messages")),
        ([], Skipped("n", "no messages")),
        ("Hi", Skipped("n", "messages are not JSON")),
        ({"role": "user"}, Skipped("n", "messages are dict instead of a list")),
        ([{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}], Document("n", "", tuple(CHAT))),
        ([{"from": "system", "value": "a"}], Document("n", "", ({"role": "system", "content": "a"},))),
        ([{"from": "user"}], Skipped("n", "a message without role")),
        (["Hi"], Skipped("n", "a message without role")),
    ],
)
def test_messages_are_a_conversation_or_say_why_not(value, expected):
    assert Column("chat", is_messages=True).document({"chat": value}, "n") == expected
