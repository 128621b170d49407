"""One reading: typed, frozen, the same for a plan and a run."""

from dataclasses import FrozenInstanceError

import pytest

from lmtrain.accounting.batches import Batch
from lmtrain.errors import ConfigurationError
from lmtrain.run.run_config import read_config
from lmtrain.run.schema.node import Node
from tests.configs import config_of, default_config


def test_amounts_are_numbers_and_options_are_nodes():
    config = config_of(
        "batch.context_tokens=0.5K", "run.log_every_steps=3", "trainer.devices=2", "callbacks.ledger=null"
    )
    assert (config.batch.context_tokens, config.run.log_every_steps, config.num_ranks) == (500, 3, 2)
    assert config.optimizer.word == "muon"
    assert "ledger" not in config.callbacks
    assert config.callbacks["checkpoint"].key == "callbacks.checkpoint"


def test_a_setting_of_a_callback_that_is_switched_off_is_refused():
    values = {**default_config().values, "callbacks": {"checkpoint": {"keep_last": 2}}}
    with pytest.raises(
        ConfigurationError, match=r"^callbacks\.checkpoint is switched off, and .*keep_last is a setting"
    ):
        read_config(values)
    for callbacks, said in (
        ({"checkpoint": False}, r"^callbacks\.checkpoint=False must be a mapping"),
        (None, r"^callbacks=\[\]"),
    ):
        given = {name: value for name, value in values.items() if name != "callbacks"}
        with pytest.raises(ConfigurationError, match=said):
            read_config(given if callbacks is None else {**given, "callbacks": callbacks})


def test_a_config_does_not_change_and_gives_a_changed_one():
    config = default_config()
    with pytest.raises(FrozenInstanceError):
        config.seed = 2  # pyright: ignore[reportAttributeAccessIssue]
    changed = config.changed(strategy=Node("strategy", {"_target_": "a.b.mine"}), batch=config.values["batch"])
    assert (changed.strategy.word, config.strategy.word) == ("mine", "auto")
    assert changed.values["strategy"] == {"_target_": "a.b.mine"}
    assert changed.batch == Batch(context_tokens=256, tokens_per_step=2048)
