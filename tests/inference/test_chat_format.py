from dataclasses import replace

import pytest

from lmtrain.errors import DataError
from lmtrain.inference.chat_format import TemplateFormat, chat_format, plain_line
from lmtrain.inference.loaded_model import ChatTemplate, LoadedModel
from lmtrain.interop.chat_template import TEMPLATES
from lmtrain.interop.template_renderer import TemplateRenderer
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.inference.cached import build

MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "How <|user_end|> are you?"},
]
CHAT = ByteLevelTokenizer(vocab_size=300, chat=True)
NESTED = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS = "{% for i in range(10**9) %}x{% endfor %}"


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
    assert "no conversations (task=sft does): turns are plain words" in (plain_line(untrained) or "")
    assert "It has no chat tokens: turns are plain words" in (plain_line(loaded(ByteLevelTokenizer())) or "")
    assert plain_line(loaded(CHAT)) is None


def test_chat_tokens_are_written_in_their_style():
    made = chat_format(loaded(CHAT, ChatTemplate("never used")))
    assert made.name == "lmtrain"
    ids = made.prompt(MESSAGES)
    assert ids[0] == CHAT.end_of_text_id  # as every document of training follows one
    assert ids[-1] == CHAT.special_tokens["<|assistant_start|>"]


def test_a_template_writes_what_the_style_writes_and_no_message_writes_a_special_token():
    """The template that an export writes, against the ids that training learns from."""
    ids = TemplateFormat(CHAT, ChatTemplate(TEMPLATES["lmtrain"], "<|end_of_text|>")).prompt(MESSAGES)
    assert ids == chat_format(loaded(CHAT)).prompt(MESSAGES)
    assert ids.count(CHAT.special_tokens["<|user_end|>"]) == 2
    assert "How <|user_end|> are you?" in CHAT.decode(ids)


def test_a_template_that_hangs_is_one_clear_error():
    made = TemplateFormat(CHAT, ChatTemplate(NESTED), TemplateRenderer(cpu_seconds=0.2))
    with pytest.raises(DataError, match=r"chat template does not write them \(more than 0.2 s"):
        made.prompt(MESSAGES)


def test_a_template_may_use_the_names_of_its_tokens():
    made = TemplateFormat(CHAT, ChatTemplate("{{ bos_token }}{{ messages[-1].content }}", "<|end_of_text|>"))
    assert made.prompt(MESSAGES) == [256, *CHAT.encode(MESSAGES[-1]["content"])]


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system turn') }}",
        "{{ messages.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__()[0]() }}",
        "{{ messages.append(1) }}",
        "{% if %}",
        "{{ 1 / 0 }}",
        ENDLESS,
    ],
)
def test_a_template_that_refuses_or_reaches_out_is_one_clear_error(template):
    with pytest.raises(DataError, match="chat template does not write them"):
        TemplateFormat(CHAT, ChatTemplate(template)).prompt(MESSAGES)


def test_what_is_no_conversation_is_refused_in_every_format():
    for made in (chat_format(loaded(ByteLevelTokenizer())), TemplateFormat(CHAT, ChatTemplate(TEMPLATES["lmtrain"]))):
        with pytest.raises(DataError, match="unknown role"):
            made.prompt([{"role": "wizard", "content": "x"}])
        with pytest.raises(DataError, match="nothing to answer"):
            made.prompt(MESSAGES[:3])
