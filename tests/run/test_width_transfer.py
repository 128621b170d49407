"""The rule as a config gives it: exact numbers, the coordinate check (arXiv 2203.03466, appendix D), and parity."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.run_config import read_config
from lmtrain.run.schema.node import instantiate

PLAIN = [
    "model=llama_3_8b", "tokenizer=byte_level", "model.vocab_size=257", "model.num_layers=2", "model.num_kv_heads=null",
    "attention=sdpa", "batch.context_tokens=16", "model.max_context_tokens=16",
]  # fmt: skip
OPTIMIZERS = ["adamw", "muon", "rmsprop"]
TOKENS = torch.randint(257, (4, 17), generator=torch.Generator().manual_seed(0))


def composed(width: int, *words: str) -> dict[str, Any]:
    """Compose a plain Llama with heads of 16."""
    shape = [f"model.width={width}", f"model.num_heads={width // 16}", f"model.feed_forward_width={3 * width}"]
    scaling = [] if any(word.startswith("scaling=") for word in words) else ["scaling=none"]
    return {**read_config(compose_config([*PLAIN, *shape, *scaling, *words])).checked().values}


def transferred(width: int, *words: str, base: int = 32) -> dict[str, Any]:
    return composed(width, "scaling=width_transfer", f"scaling.base_width={base}", *words)


def learned(config: dict[str, Any], *, num_steps: int) -> tuple[list[float], torch.Tensor]:
    """Return the losses of steps on one batch, and its logits before them and after, [2, B, T, V]."""
    model = instantiate(config["model"], key="model")
    model.initialize_weights(torch.Generator().manual_seed(1))
    optimizer = instantiate(config["optimizer"], key="optimizer")(model)
    inputs, targets = TOKENS[:, :-1], TOKENS[:, 1:].flatten()
    losses: list[float] = []
    first = model(inputs).detach()
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, torch.stack([first, model(inputs).detach()])


def growth(scaling: list[str], optimizer: str, *words: str) -> float:
    """Return the exponent by which what four steps move logits grows with width, from 32 to 128."""
    sizes: list[float] = []
    for width in (32, 128):
        _, (before, after) = learned(composed(width, f"optimizer={optimizer}", *words, *scaling), num_steps=4)
        sizes.append((after - before).square().mean().sqrt().item())
    return math.log(sizes[1] / sizes[0]) / math.log(128 / 32)


@pytest.mark.parametrize(("optimizer", "lr"), [("adamw", 0.004), ("muon", 0.01)])
def test_steps_move_logits_alike_at_every_width_and_otherwise_more_with_it(optimizer: str, lr: float) -> None:
    words = (optimizer, f"optimizer.lr={lr}")
    assert growth([], *words) > 0.5
    assert abs(growth(["scaling=width_transfer", "scaling.base_width=32"], *words)) < 0.15


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_at_the_base_width_a_training_is_the_same_to_the_last_digit(optimizer: str) -> None:
    plain, _ = learned(composed(32, f"optimizer={optimizer}"), num_steps=3)
    same, _ = learned(transferred(32, f"optimizer={optimizer}"), num_steps=3)
    assert same == plain


def test_adamw_moves_and_starts_matrices_and_head_by_the_table() -> None:
    config = transferred(512, "optimizer=adamw", "optimizer.lr=0.008", "optimizer.weight_decay=0.1")
    model, optimizer = config["model"], config["optimizer"]
    assert optimizer["lr_multipliers"] == {"matrices": 1 / 16, "head": 1 / 16}
    assert (optimizer["lr"], optimizer["weight_decay"]) == (0.008, pytest.approx(1.6))
    assert (model["init_std"], model["embedding_init_std"], model["head_init_std"]) == (0.005, 0.02, 0.02 / 16)
    assert "attention_multiplier" not in model
    built = instantiate(config["optimizer"], key="optimizer")(instantiate(model, key="model"))
    rates = {group["name"]: group["lr"] for group in built.param_groups}
    assert rates == {"matrices": 0.0005, "head": 0.0005, "embeddings": 0.008, "vectors": 0.008}


def test_what_is_typed_is_the_base_s() -> None:
    words = ["optimizer=adamw", "optimizer.lr_multipliers={head: 0.5, vectors: 3.0}", "+model.head_init_std=0.1"]
    config = transferred(128, *words)
    assert config["optimizer"]["lr_multipliers"] == {"matrices": 0.25, "head": 0.125, "vectors": 3.0}
    assert config["model"]["head_init_std"] == 0.025


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=gpt2_124m"], r"^model: must be a Llama .*, got GPT2. Did you mean .*scaling=none"),
        (["model=nano"], r"got nano. .*scaling=depth_dial for model=nano"),
        (
            ["+model.tie_embeddings=true"],
            r"^model\.tie_embeddings: must be null or false",
        ),
        (
            ["optimizer=sgd"],
            r"^optimizer: must .*its steps grow with.*got sgd.*one of optimizer=.*adamw",
        ),
        (["optimizer=adamw", "optimizer.decay_embeddings=true"], r"^optimizer\.decay_embeddings: must be false"),
        (
            ["optimizer=rmsprop", "optimizer.weight_decay=0.1"],
            r"^optimizer\.weight_decay: must be 0 .*, got 0\.1",
        ),
        (["scaling.base_width=0"], r"scaling\.base_width: must be at least 1, got 0"),
        (["model.width=wide"], r"model\.width=wide is not a number"),
    ],
)
def test_what_has_no_rule_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        compose_config(["model=llama_3_8b", "scaling=width_transfer", *words])


@pytest.mark.parametrize(
    ("words", "rates"),
    [
        (["model=llama_3_8b", "optimizer=adamw"], {"lr": 3e-3 / 32 ** (2 / 3)}),
        (["model=llama_3_8b", "optimizer=adamw", "optimizer.lr=3e-4"], {"lr": 3e-4}),
        (["model=llama_3_8b"], {"lr": 0.025, "embedding_lr": 0.06 / 32 ** (2 / 3)}),
        (["model=llama_3_8b", "scaling=none", "optimizer=adamw"], {"lr": 3e-3}),
        (["model=llama_tiny", "optimizer=adamw"], {"lr": 3e-3}),
    ],
)
def test_a_published_model_brings_its_batch_and_the_scale_of_its_rates(words: list[str], rates: dict[str, float]):
    config = compose_config(words)
    assert {name: config["optimizer"][name] for name in rates} == pytest.approx(rates)
    is_published = "model=llama_3_8b" in words
    assert config["batch"]["context_tokens"] == (8192 if is_published else 256)
    assert config["batch"]["tokens_per_step"] == ("4Mi" if is_published else 2048)
