from pathlib import Path

import pytest

from lmtrain.data.shards import open_dataset
from lmtrain.data.synthetic import synthetic
from lmtrain.run.stored_runs.identity import identity, identity_of_settings, with_settings
from tests.configs import config_of


@pytest.mark.parametrize(
    "override",
    ["attention=eager", "optimizer.lr=0.1", "precision=bf16_mixed", "budget.steps=9", "strategy=ddp", "compile=blocks"],
)
def test_what_leaves_a_checkpoint_usable_is_no_part_of_its_identity(override: str) -> None:
    assert identity_of_settings(config_of(override)) == identity_of_settings(config_of())


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("model.width=32", "model.width"),
        ("model.qk_norm=false", "model.qk_norm"),
        ("optimizer=adamw", "optimizer._target_"),
        ("seed=2", "seed"),
        ("batch.tokens_per_step=1024", "batch.tokens_per_step"),
        ("batch.context_tokens=32", "batch.context_tokens"),
        ("weight_average=ema", "weight_average"),
    ],
)
def test_what_makes_another_run_of_it_is_part_of_its_identity(override: str, name: str) -> None:
    one, other = identity_of_settings(config_of()), identity_of_settings(config_of(override))
    assert one.get(name) != other[name]
    assert with_settings(one, other) == other


def test_other_tokens_make_another_run(tmp_path: Path) -> None:
    folders = [synthetic(root=str(tmp_path), vocab_size=257, num_tokens=600, seed=seed) for seed in (0, 1)]
    one, other = (identity(config_of(), open_dataset(folder).manifest) for folder in folders)
    assert {name for name in one if one[name] != other[name]} == {"data.fingerprint"}


def test_settings_beside_a_checkpoint_s_own_data_are_its_identity_where_they_are_the_same() -> None:
    here = identity_of_settings(config_of())
    there = {**here, "data.fingerprint": "a", "tokenizer": "b", "packing": "Contiguous()"}
    assert with_settings(there, here) == there
    assert with_settings({**there, "objective._target_": "dpo", "model.biases": True}, here) == there
