from lmtrain.accounting.training_plan.spread import ModelSpread
from lmtrain.parallel.facts.fsdp import fsdp


def test_fsdp_cuts_over_all_ranks_and_casts_what_it_gathers():
    kept = ModelSpread(shards_over="all ranks", casts_parameters=True, reshard_after_forward=False)
    assert fsdp(reshard_after_forward=False, timeout_seconds=600) == kept
