"""Random strategies, batches and models on ranks equal one process: a few draws, or LMTRAIN_FUZZ_EXAMPLES of them.

`lmtrain parity` prints the words of each draw, and of a failing one the smallest that fails.
"""

import os
from itertools import product
from pathlib import Path

import pytest

from lmtrain.cli.commands.parity import parity
from lmtrain.errors import EXIT_DONE

EXAMPLES = int(os.environ.get("LMTRAIN_FUZZ_EXAMPLES", "0"))
SMALL = [
    *(
        "debug=tiny",
        "data=synthetic",
        "data.folder.num_tokens=60000",
        "tokenizer=byte_level",
        "tokenizer.vocab_size=512",
    ),
    *("model.width=32", "model.num_heads=4"),
]
EXPERTS = ["model.feed_forward_width=16", "model.experts.num_experts=4", "model.experts.num_experts_per_token=2"]
MODELS = {
    "nano": ["model.num_layers=3", "model.num_bigram_buckets=64", "model.value_embedding_layers=[1]", "optimizer=muon"],
    "gpt2": ["model=gpt2_124m", "model.num_layers=3", "model.vocab_size=512", "optimizer=adamw"],
    "windows": ["model=gemma_3_270m", "model.num_layers=3", "model.num_kv_heads=2", "model.head_width=8",
                "model.feed_forward_width=48", "model.vocab_size=512", "model.window_tokens=8",
                "model.window_pattern=SL", "optimizer=muon"],
    "mixtral": ["model=mixtral_tiny", "model.num_layers=3", *EXPERTS, "optimizer=adamw"],
    "latent": ["model=deepseek_v2_lite", "model.num_layers=3", *EXPERTS, "model.latent_attention.latent=8",
               "model.latent_attention.unrotated=8", "model.latent_attention.rotated=4",
               "model.latent_attention.value=8", "model.experts.shared_width=16", "model.experts.dense_width=32",
               "model.vocab_size=512", "optimizer=adamw"],
    "mamba": ["model=nemotron_h_8b", "model.num_layers=4", "model.num_kv_heads=2", "model.head_width=8",
              "model.feed_forward_width=48", "model.recurrent_layers.num_heads=4",
              "model.recurrent_layers.head_width=8", "model.recurrent_layers.state_width=8",
              "model.recurrent_layers.num_groups=2", "model.recurrent_pattern=RFAF", "model.vocab_size=512",
              "optimizer=muon"],
    "delta": ["model=qwen_3_next_80b_a3b", "model.num_layers=4", "model.num_kv_heads=2", "model.head_width=8", *EXPERTS,
              "model.experts.shared_width=16", "model.recurrent_layers.num_key_heads=2",
              "model.recurrent_layers.num_value_heads=4", "model.recurrent_layers.key_width=8",
              "model.recurrent_layers.value_width=8", "model.vocab_size=512", "optimizer=adamw"],
}  # fmt: skip
CELLS = [(seed, *cell) for seed, cell in enumerate(product(MODELS, ("contiguous", "best_fit")))]


def hunted(words: list[str], *, draws: int, ranks: int, seed: int = 0) -> int:
    return parity([*SMALL, *words, f"--draws={draws}", f"--ranks={ranks}", f"--seed={seed}"])


@pytest.mark.distributed
def test_random_strategies_of_the_default_model_equal_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert hunted(MODELS["nano"], draws=2, ranks=2) == EXIT_DONE


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("seed", "model", "packing"), CELLS)
def test_random_strategies_of_any_model_equal_one_process(
    seed: int, model: str, packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draws = max(2, EXAMPLES // len(CELLS))
    assert hunted([*MODELS[model], f"packing={packing}"], draws=draws, ranks=4, seed=seed) == EXIT_DONE
