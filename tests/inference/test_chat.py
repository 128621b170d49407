import json
from dataclasses import replace

import pytest
import torch

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.inference.cache import cached_sdpa
from lmtrain.inference.chat import ChatSession, answer_all, chat_format, plain_line, template_format
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.sampling import Sampling, generate
from lmtrain.interop.tokenizer_files import TEMPLATES
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.tokenizers.base import ChatTemplate
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.inference.cached import LLAMA, build, noisy

MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "How <|user_end|> are you?"},
]
CHAT = ByteLevelTokenizer(vocab_size=300, chat=True)


def loaded(tokenizer, template=None):
    return LoadedModel(name="x", model=build("llama"), tokenizer=tokenizer, template=template)


def test_a_model_without_chat_tokens_gets_plain_words():
    made = chat_format(loaded(ByteLevelTokenizer()))
    assert made.name == "plain"
    ids = made.prompt([*MESSAGES[:2], {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "So?"}])
    assert ids[0] == 256
    sent_back = {"role": "assistant", "content": " Hi."}  # as the model wrote it behind the colon
    assert made.prompt([*MESSAGES[:2], sent_back, {"role": "user", "content": "So?"}]) == ids
    assert bytes(ids[1:]).decode() == "Be kind.\n\nUser: Hello\nAssistant: Hi.\nUser: So?\nAssistant:"
    assert "\nUser:" in made.stops


def test_a_model_never_trained_on_conversations_gets_plain_words_beside_its_chat_tokens():
    untrained = replace(loaded(CHAT), converses=False)
    assert chat_format(untrained).name == "plain"
    assert "task=sft" in (plain_line(untrained) or "")
    assert "no chat tokens" in (plain_line(loaded(ByteLevelTokenizer())) or "")
    assert plain_line(loaded(CHAT)) is None


def test_a_template_writes_what_the_style_writes_and_no_message_writes_a_special_token():
    """The template that an export writes, against the ids that training learns from."""
    ids = template_format(CHAT, ChatTemplate(TEMPLATES["lmtrain"], "<|end_of_text|>")).prompt(MESSAGES)
    assert ids == chat_format(loaded(CHAT)).prompt(MESSAGES)
    assert ids.count(CHAT.special_tokens["<|user_end|>"]) == 2
    assert "How <|user_end|> are you?" in CHAT.decode(ids)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system turn') }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% if %}",
    ],
)
def test_a_template_that_refuses_or_reaches_out_is_one_clear_error(template):
    with pytest.raises(DataError, match="chat template refuses them"):
        template_format(CHAT, ChatTemplate(template)).prompt(MESSAGES)


def test_what_is_no_conversation_is_refused_in_every_format():
    for made in (chat_format(loaded(ByteLevelTokenizer())), template_format(CHAT, ChatTemplate(TEMPLATES["lmtrain"]))):
        with pytest.raises(DataError, match="unknown role"):
            made.prompt([{"role": "wizard", "content": "x"}])
        with pytest.raises(DataError, match="nothing to answer"):
            made.prompt(MESSAGES[:1])


def say(talk, text, **settings):
    return [part for part in talk.answer(text, **settings) if isinstance(part, str)]


def session(*, num_new_tokens=12, **settings):
    sizes = {**LLAMA, "vocab_size": 257, "max_context_tokens": 128, "attention": cached_sdpa}
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
    with pytest.raises(ConfigurationError, match=r"message: .*128"):
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


def test_answers_are_those_of_each_conversation_alone_in_their_order():
    tokenizer = ByteLevelTokenizer(vocab_size=267, chat=True)
    model = GPT2(width=16, num_layers=1, num_heads=2, vocab_size=267, max_context_tokens=128, attention=cached_sdpa)
    model.initialize_weights(torch.Generator().manual_seed(0))
    loaded = LoadedModel(name="a", model=model.eval(), tokenizer=tokenizer)
    asked = [[{"role": "user", "content": text}] for text in ("a longer question than the other", "b")]
    answers = answer_all(loaded, asked, num_new_tokens=5)
    for messages, answer in zip(asked, answers, strict=True):
        prompt = chat_format(loaded).prompt(messages)
        alone = generate(model, torch.tensor([prompt]), num_new_tokens=5, sampling=Sampling(temperature=0.0))
        assert answer.new_tokens == alone[0, len(prompt) :].tolist()
        assert answer.finish_reason == "length"
