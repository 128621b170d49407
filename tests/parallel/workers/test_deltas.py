from pathlib import Path

import pytest
import torch

from lmtrain.accounting.options.outer_settings import BLOCK_VALUES, DeltaFormat, delta_bytes
from lmtrain.parallel.outer_step import LARGEST, decode, encode, mean_over_ranks
from tests.parallel.sent import Sent
from tests.ranks import on_ranks

FORMATS: tuple[DeltaFormat, ...] = ("fp32", "bf16", "int8", "int4")


def values(rank: int, num_values: int = 2 * BLOCK_VALUES) -> torch.Tensor:
    return torch.randn(num_values, generator=torch.Generator().manual_seed(rank)) * 10.0 ** (rank - 3)


@pytest.mark.parametrize("delta", ["int8", "int4"])
def test_a_value_is_off_by_half_a_step_of_its_block_at_most(delta):
    """The largest of each block is kept, and steps are even: a block's last value over the largest integer."""
    given = torch.cat([values(0), 1e6 * values(1), torch.zeros(BLOCK_VALUES)]).view(1, -1)
    blocks = given.view(-1, BLOCK_VALUES)
    error = (decode(encode(given, delta), delta).view_as(blocks) - blocks).abs()
    steps = blocks.abs().amax(-1, keepdim=True) / LARGEST[delta]
    assert (error <= steps / 2 * 1.00001).all()
    assert error.gather(1, blocks.abs().argmax(-1, keepdim=True)).max() <= 1e-6 * blocks.abs().max()


@pytest.mark.parametrize("delta", ["bf16", "int8", "int4"])
def test_a_value_takes_the_bytes_that_plans_count(delta):
    given = torch.ones(3, 5 * BLOCK_VALUES)
    assert encode(given, delta).nbytes == delta_bytes(delta) * given.numel()


@pytest.mark.parametrize("delta", ["int8", "int4"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_not_hidden(delta, wrong):
    given = values(0).view(1, -1)
    given[0, 3] = wrong
    assert not decode(encode(given, delta), delta)[0, 3].isfinite()


def _rank(rank: int) -> None:
    num_values = 1_000  # no multiple of a block
    exact = torch.stack([values(0, num_values), values(1, num_values)]).mean(0)
    for delta in FORMATS:
        with Sent() as sent:
            mean, sent_bytes = mean_over_ranks(values(rank, num_values), delta)
        assert sum(message.sent for message in sent.take()) == sent_bytes
        assert sent_bytes == pytest.approx(delta_bytes(delta) * num_values, rel=0.03)  # 24 values fill the last blocks
        step = {"fp32": 1e-6, "bf16": 2**-8, "int8": 1 / 127, "int4": 1 / 7}[delta]
        assert (mean - exact).abs().max() <= step * exact.abs().max()  # rounded twice, by half a step each
        both = [torch.empty_like(mean), torch.empty_like(mean)]
        torch.distributed.all_gather(both, mean)
        assert torch.equal(*both), "every rank goes on from the same mean"


@pytest.mark.distributed
def test_the_mean_over_ranks_is_rounded_alike_and_its_bytes_are_counted(tmp_path: Path) -> None:
    on_ranks(_rank, folder=tmp_path)
