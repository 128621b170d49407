import pytest

from data_pipelines.sources.made_conversations import MadeConversations
from data_pipelines.sources.made_questions import KINDS
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.tokenizers.conversation import read_conversation


@pytest.fixture(scope="module", name="code")
def made_code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    (folder / "a.py").write_text("from abc import ABC\ndef read(self, size):\nopen door table under chair lamp\n")
    return folder


def made(code, **more):
    return MadeConversations(**{"num_conversations": 30, "num_words": 6, "folder": str(code), **more})


def test_conversations_are_valid_and_the_same_each_time(code):
    first, again = list(made(code).documents()), list(made(code).documents())
    assert first == again != list(made(code, seed=1).documents())
    assert len({document.id for document in first}) == 30
    assert {len(read_conversation(document.messages)) for document in first} == {2, 4}


def test_a_sample_tells_the_bytes_of_all(code):
    source = made(code, num_conversations=2_000)
    texts = [message["content"] for document in source.documents() for message in document.messages or ()]
    assert source.text_bytes == pytest.approx(sum(len(text.encode()) for text in texts), rel=0.1)


def test_held_out_questions_are_in_no_conversation(code):
    asked = {one.question for one in made(code).held_out(20)}
    assert len(asked) == 20
    told = {m["content"] for document in made(code, num_conversations=500).documents() for m in document.messages or ()}
    assert not asked & told


def test_some_kinds_are_asked_alone_and_one_that_is_none_is_refused(code):
    few = made(code, kinds=["sum", "reverse"])
    assert [one.kind for one in few.held_out(4)] == ["reverse", "sum"] * 2
    asked = [message for document in few.documents() for message in document.messages or ()][::2]
    assert {"+" in m["content"] or "plus" in m["content"] or "words" in m["content"] for m in asked} == {True}
    assert few.fingerprint() != made(code).fingerprint() == made(code, kinds=list(KINDS)).fingerprint()
    with pytest.raises(ConfigurationError, match=r"'sums' is no kind of question; valid: .* Did you mean 'sum'\?"):
        made(code, kinds=["sums"])
    with pytest.raises(DataError, match="it makes no question of definition"):
        made(code, kinds=["definition"]).held_out(1)


def test_the_fingerprint_changes_with_the_settings_and_the_code(code, tmp_path):
    prints = {made(code).fingerprint(), made(code, seed=1).fingerprint(), made(code, num_words=5).fingerprint()}
    assert len(prints) == 3
    assert made(code).fingerprint() in prints
    (tmp_path / "b.py").write_text("from abc import ABC\n")
    assert made(tmp_path).fingerprint() not in prints


def test_too_little_is_refused(code, tmp_path):
    with pytest.raises(ConfigurationError, match=r"source\.num_words=3 is below 4; nearest valid: 4"):
        made(code, num_words=3)
    (tmp_path / "b.py").write_text("open door\n")
    with pytest.raises(DataError, match=r"the code has 2 words, 0 definitions .* need 6, 1 and 1"):
        list(made(tmp_path).documents())
