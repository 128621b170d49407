from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy

from lmtrain.errors import ConfigurationError
from lmtrain.parallel.replicate import auto, auto_facts, ddp, ddp_facts, single, single_facts
from lmtrain.parallel.strategy import whole
from tests.ranks import on_ranks


def test_one_rank_needs_no_strategy():
    parallelism = single(num_ranks=1)
    assert (parallelism.name, parallelism.strategy, parallelism.parallelize) == ("single", "auto", whole)


@pytest.mark.parametrize("num_ranks", [2, 512])
def test_a_single_rank_cannot_be_several_and_the_message_names_what_can(num_ranks):
    with pytest.raises(ConfigurationError) as refused:
        single(num_ranks=num_ranks)
    assert str(refused.value) == (
        f"strategy=single trains on 1 rank, not {num_ranks}; use strategy=ddp, or shard over them."
    )


@pytest.mark.faults
def test_ddp_keeps_no_second_copy_of_the_gradients_and_gives_up_on_a_silent_rank():
    parallelism = ddp(num_ranks=2, timeout_seconds=30)
    strategy = parallelism.strategy
    assert isinstance(strategy, DDPStrategy)
    kept = {"gradient_as_bucket_view": True, "broadcast_buffers": False}
    assert strategy._ddp_kwargs == kept | {"find_unused_parameters": False}
    assert strategy._timeout == timedelta(seconds=30)
    assert (parallelism.parallelize, parallelism.casts_parameters) == (whole, False)


@pytest.mark.parametrize(("num_ranks", "name"), [(1, "single"), (2, "ddp"), (16, "ddp")])
def test_auto_takes_ddp_for_several_ranks(num_ranks, name):
    assert auto(num_ranks=num_ranks).name == name


def test_auto_passes_its_timeout_on():
    strategy = auto(num_ranks=2, timeout_seconds=7).strategy
    assert isinstance(strategy, DDPStrategy)
    assert strategy._timeout == timedelta(seconds=7)


@pytest.mark.parametrize(("facts", "reduces_alone"), [(auto_facts, False), (single_facts, False), (ddp_facts, True)])
def test_every_rank_holds_the_whole_model_as_it_is(facts, reduces_alone):
    spread = facts()
    assert (spread.num_shards(16), spread.casts_parameters, spread.reduces_alone) == (1, False, reduces_alone)


@pytest.mark.distributed
def test_gradients_sent_in_bf16_are_half_the_bytes_and_rounded_on_a_cpu_too(tmp_path):
    """In processes of their own: the end of DDP's group may wait for a thread that waits for Python (torch 2.13)."""
    assert (ddp_facts(gradients_in="bf16").gradient_bytes, ddp_facts().gradient_bytes) == (2, 4)
    on_ranks(_rounds_gradients, folder=tmp_path)


def _rounds_gradients(rank):
    del rank
    strategy = ddp(num_ranks=2, gradients_in="bf16").strategy
    strategy.parallel_devices = [torch.device("cpu")]
    strategy.cluster_environment = SimpleNamespace(local_rank=lambda: 0)  # of a list of one device
    model = strategy._setup_model(torch.nn.Linear(5, 1, bias=False))
    model(torch.full((1, 5), 1 / 3)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert torch.equal(gradients[0], torch.full((1, 5), 1 / 3).bfloat16().float())
