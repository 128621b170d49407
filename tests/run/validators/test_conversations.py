import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.validators.conversations import require_conversations
from tests.configs import config_of

SFT = "task=sft"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), r"\(PythonStandardLibrary\) is text, and task=sft .*; nearest valid: source=made_conversations, or task="),
        (
            ("source=files", "source.paths=[a]"),
            r"nearest valid: source\.messages_column=messages \(a .* \{role, content\}\), source=made",
        ),
        (("source=fineweb_edu",), r"\(HuggingFaceDataset\) is text"),
    ],
)
def test_text_is_refused_where_only_answers_are_learned(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        require_conversations(config_of(SFT, *words))
    require_conversations(config_of("packing=best_fit", "packing.document_mask=true", *words))


@pytest.mark.parametrize(
    "words",
    [
        ["source=made_conversations"],
        ["source=smoltalk"],
        ["source=chat_mixture"],
        ["source=files", "source.paths=[a]", "source.messages_column=m"],
        ["data=synthetic"],
    ],
)
def test_conversations_and_data_that_tell_by_themselves_pass(words: list[str]) -> None:
    require_conversations(config_of(SFT, *words))


def test_text_asks_no_question() -> None:
    grpo = ["task=grpo", "init_from=x"]
    with pytest.raises(
        ConfigurationError, match=r"text, and task=grpo asks the last question .*: source=made_conv\w+\.$"
    ):
        require_conversations(config_of(*grpo))
    require_conversations(config_of(*grpo, "source=made_conversations"))
    require_conversations(config_of("task=dpo", "init_from=x", "source.paths=[a]"))
