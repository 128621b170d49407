import json

import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.inference.chat_session import ChatSession
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.paged_attention import paged
from lmtrain.inference.sampling_settings import Sampling
from lmtrain.models.llama import Llama
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.inference.cached import LLAMA, noisy


def say(talk, text, **settings):
    return [delta.text for delta in talk.answer(text, **settings)]


def session(*, num_new_tokens=12, **settings):
    sizes = {**LLAMA, "vocab_size": 257, "max_context_tokens": 128, "attention": paged}
    loaded = LoadedModel(
        name="x", model=noisy(Llama(**sizes)), tokenizer=ByteLevelTokenizer(), end_ids=frozenset({256})
    )
    sampling = Sampling(logit_bias={256: -100.0})
    return ChatSession(loaded, sampling=sampling, num_new_tokens=num_new_tokens, seed=1, **settings)


def test_an_answer_is_kept_as_it_was_said():
    talk = session()
    said = "".join(say(talk, "Hello"))
    assert said
    assert talk.messages == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": said.strip()},
    ]
    talk.reset()
    assert talk.messages == []
    assert "".join(say(talk, "Hello")) == said  # the seed


def test_a_stopped_answer_is_kept_as_far_as_it_was_said():
    talk, asked = session(num_new_tokens=40), iter(range(99))
    pieces = say(talk, "Hello", is_stopped=lambda: next(asked) >= 3)
    assert len(pieces) < 10
    assert talk.messages[-1]["content"] == "".join(pieces).strip()
    assert "".join(say(talk, "Go on"))


def test_the_oldest_turns_are_left_out_where_the_context_ends():
    talk = session()
    for _ in range(6):
        say(talk, "twenty characters ...")
    assert talk.num_left_out > 0
    assert talk.num_left_out % 2 == 0
    with pytest.raises(ConfigurationError, match="the model's context is 128: shorten it"):
        say(talk, "x" * 200)
    assert len(talk.messages) == 12  # the refused one is not there


def test_conversations_are_saved_a_line_each(tmp_path):
    talk = session(system="Be kind.")
    say(talk, "Hello")
    for _ in range(2):
        talk.save(tmp_path / "talk.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "talk.jsonl").read_text().splitlines()]
    assert [message["role"] for message in lines[1]["messages"]] == ["system", "user", "assistant"]
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        talk.save(tmp_path / "no/such/folder")


def test_an_impossible_temperature_changes_nothing():
    talk = session()
    with pytest.raises(ConfigurationError, match="temperature=-1"):
        talk.set_temperature(-1)
    assert talk.sampling.temperature == 1.0
