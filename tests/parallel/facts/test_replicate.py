import pytest

from lmtrain.parallel.facts.replicate import auto, ddp, single


@pytest.mark.parametrize("describe", [auto, ddp, single])
def test_every_rank_holds_the_whole_model_as_it_is(describe):
    spread = describe(timeout_seconds=600)
    assert (spread.num_shards(16, 8), spread.casts_parameters) == (1, False)
