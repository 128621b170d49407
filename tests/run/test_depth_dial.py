import math
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.compose import compose_config

NANO = ["model=nano", "model.vocab_size=32768"]


def dialled(*words: str) -> dict[str, Any]:
    return compose_config([*NANO, "scaling=depth_dial", *words])


def rates(config: dict[str, Any]) -> list[float]:
    return [config["optimizer"][name] for name in ("lr", "embedding_lr", "head_lr", "vector_lr")]


def test_depth_12_keeps_every_setting_but_the_batch() -> None:
    config, plain = dialled("model.depth=12"), compose_config(NANO)
    assert config["batch"]["tokens_per_step"] == 2**19
    assert config["optimizer"] == plain["optimizer"]


def test_depth_24_takes_twice_the_batch_and_rates_to_match() -> None:
    config, plain = dialled("model.depth=24", "optimizer.weight_decay=0.2"), compose_config(NANO)
    assert config["batch"]["tokens_per_step"] == 2**20
    lr, embedding_lr, head_lr, vector_lr = rates(plain)
    assert rates(config) == pytest.approx([lr * math.sqrt(2), embedding_lr, head_lr, vector_lr * math.sqrt(2)])
    assert config["optimizer"]["weight_decay"] == pytest.approx(0.2 * math.sqrt(2) * 110_100_912 / 729_810_624)


def test_a_typed_batch_stays_and_rates_follow_it() -> None:
    config, plain = dialled("model.depth=12", "batch.tokens_per_step=32768"), compose_config(NANO)
    assert config["batch"]["tokens_per_step"] == 32_768
    assert rates(config) == pytest.approx([lr / 4 for lr in rates(plain)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=llama_tiny"], r"^model: must be nano .*, got Llama. Did you mean .*scaling=none"),
        (["optimizer=adamw"], r"^optimizer: must be muon .*, got adamw. Did you mean optimizer=muon_nano"),
        (["model.depth=deep"], r"model\.depth=deep is not a number"),
    ],
)
def test_what_was_not_tuned_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        compose_config(["model=nano", "scaling=depth_dial", *words])
