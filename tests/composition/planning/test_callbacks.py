import pytest

from lmtrain.composition.command_line.compose import compose_config
from lmtrain.composition.planning.callbacks import callback_facts
from lmtrain.composition.run_config import read_config
from lmtrain.errors import ConfigurationError


def facts_of(*words):
    return callback_facts(read_config(compose_config([*words])))


def test_callbacks_say_what_they_keep_and_read():
    found = facts_of("callbacks.checkpoint.keep_last=3", "callbacks.validation.max_tokens=2K")
    assert sum(facts.num_kept for facts in found) == 3
    assert [facts.snapshot_from_bytes for facts in found if facts.snapshot_from_bytes] == [50_000_000]
    (passes,) = [facts.reads for facts in found if facts.reads]
    assert (passes.split, passes.num_passes, passes.max_tokens) == ("validation", 4, 2000)
    assert not [facts for facts in facts_of("~callbacks.checkpoint") if facts.num_kept]


def test_a_setting_of_the_wrong_type_is_refused_by_its_key():
    with pytest.raises(ConfigurationError, match=r"callbacks\.checkpoint\.keep_last"):
        facts_of("callbacks.checkpoint.keep_last=[]")
