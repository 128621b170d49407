"""A node says its target and settings, changes into another one and never changes itself."""

import pytest

from lmtrain.accounting.batches import Batch
from lmtrain.errors import ConfigurationError
from lmtrain.run.schema.node import Node

VALUES = {"_target_": "lmtrain.accounting.batches.Batch", "context_tokens": "1K", "tokens_per_step": 2048}
NODE = Node("batch", VALUES)


def test_a_node_says_its_target_and_gives_its_settings():
    assert (NODE.target, NODE.word) == ("lmtrain.accounting.batches.Batch", "Batch")
    assert (NODE.get("context_tokens"), NODE.get("missing", 3), "context_tokens" in NODE) == ("1K", 3, True)
    assert Node("run", {"name": "cat"}).target == ""


def test_a_setting_that_is_a_node_is_one_under_its_full_key():
    found = Node("data", {"folder": VALUES, "path": "x"}).node("folder")
    assert found == Node("data.folder", VALUES)
    assert Node("data", {"path": "x"}).node("path") is None


def test_changes_are_of_a_copy():
    assert NODE.changed(context_tokens=7).get("context_tokens") == 7
    assert "context_tokens" not in NODE.without("context_tokens")
    assert NODE.values == VALUES


def test_a_checked_node_has_numbers_and_builds():
    checked = NODE.checked()
    assert checked.get("context_tokens") == 1000
    assert checked.build() == Batch(context_tokens=1000, tokens_per_step=2048)
    with pytest.raises(ConfigurationError, match=r"batch\.contxt=1 is not a setting.*'context_tokens'"):
        NODE.changed(contxt=1).checked()


def test_the_canonical_form_is_the_same_however_an_amount_is_written():
    assert NODE.canonical() == NODE.changed(context_tokens=1000).canonical()
