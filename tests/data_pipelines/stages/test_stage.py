import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.clean import LengthFilter, UnicodeRepair
from data_pipelines.stages.deduplicate import ExactDeduplication
from data_pipelines.stages.stage import OnlyEncodable, Stage, content_of, in_turn, runs_of, with_strings

MESSAGES = (
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": [{"type": "text", "text": "hello"}], "tool_calls": [{"arguments": {"n": 1}}]},
)


def test_our_stages_are_stages():
    assert all(isinstance(stage, Stage) for stage in (UnicodeRepair(), LengthFilter(), ExactDeduplication()))
    assert not isinstance({}, Stage)


def test_documents_go_through_stages_in_turn_and_drops_stay_in_their_places():
    documents = [Document("a", "x\r\n"), Skipped("b", "why"), Document("c", "\0"), Document("d", "x\n")]
    items = list(in_turn([UnicodeRepair(), LengthFilter(), ExactDeduplication()], documents))
    assert items == [
        Document("a", "x\n"),
        Skipped("b", "why"),
        Skipped("c", "empty"),
        Skipped("d", "exact duplicate"),
    ]


@pytest.mark.parametrize(
    ("text", "reason"), [("", "empty"), (" \n", "empty"), ("a\ud800", "lone surrogates"), ("ä", None), ("a", None)]
)
def test_what_no_tokenizer_can_take_never_passes(text, reason):
    document = Document("a", text)
    assert OnlyEncodable().look_at(document) == (Skipped("a", reason) if reason else document)


def test_stages_fall_into_runs_and_each_run_over_documents_ends_with_the_guard():
    repair, length, exact = UnicodeRepair(), LengthFilter(), ExactDeduplication()
    names = [[type(stage).__name__ for stage in run] for run in runs_of([repair, length, exact, length])]
    assert names == [
        ["UnicodeRepair", "LengthFilter", "OnlyEncodable"],
        ["ExactDeduplication"],
        ["LengthFilter", "OnlyEncodable"],
    ]
    assert [len(run) for run in runs_of([exact])] == [1, 1]
    assert [len(run) for run in runs_of([])] == [1]


def test_the_content_of_a_conversation_is_what_is_said_in_it():
    assert content_of(Document("a", "text")) == "text"
    assert content_of(Document("a", "", MESSAGES)).split() == ["hi", "text", "hello"]


def test_strings_change_wherever_they_stand_except_roles():
    changed = with_strings(Document("a", "", MESSAGES), str.upper)
    assert changed.messages == (
        {"role": "user", "content": "HI"},
        {"role": "assistant", "content": [{"type": "TEXT", "text": "HELLO"}], "tool_calls": [{"arguments": {"n": 1}}]},
    )
    same = Document("a", "text")
    assert with_strings(same, str) is same
