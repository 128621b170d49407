import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.foreign.table import filled, name_elsewhere, values_of


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("LR", "lr"),
        ("training.seq_len", "seq_len"),
        ("optimizer.lr", ""),
        ("trainer.max_steps", "max_steps"),
        ("data.sources.name", ""),
        ("nothing", ""),
        ("callbazcks.checkpoint", ""),  # of ours, with another letter
        ("clsuter.device", ""),
    ],
)
def test_a_name_of_others_is_known_below_its_sections(key: str, name: str) -> None:
    assert name_elsewhere(key) == name


def test_an_answer_is_filled_with_the_value_its_implied_words_and_its_note() -> None:
    assert filled("a.every_steps={}", "500ba").words == ("a.every_steps=500",)  # Composer's batches
    found = filled("a={} ?b=1 # so", "3")
    assert (found.words, found.implied, found.note) == (("a=3",), ("b=1",), "so")
    assert values_of(["lr=1", "--max-steps", "3"]) == {"lr": "1", "max_steps": "3"}


def test_weights_beside_an_adapter_stay_frozen() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^adapter\.bias=all: .* biases and tables too, stays .* leave it out"
    ):
        parse_arguments(["adapter.bias=all"])
