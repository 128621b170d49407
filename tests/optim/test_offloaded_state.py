"""State in host memory changes no number of an optimizer, and leaves the device but for a piece at a time."""

from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from lmtrain.optim.offloaded_state import keep_state_on_host
from tests.fake_gpu import fake_gpu
from tests.optim.models import fill_gradients, tiny_model
from tests.optim.options import OWN, build

OPTIONS = sorted(set(OWN) - {"adamw_8bit"})  # which compiles for minutes
PIECE_BYTES = 600  # two of the small matrices, or one larger tensor


def trained(option: str, *, on_host: bool, steps: int, saved: Any = None) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = tiny_model()
    optimizer = build(option, model)
    if on_host:
        optimizer = keep_state_on_host(optimizer, piece_bytes=PIECE_BYTES)
    first = 0
    if saved is not None:
        first, weights, state = saved
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    for step in range(first, steps):
        fill_gradients(model, step)
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("option", OPTIONS)
def test_weights_and_state_are_those_of_the_optimizer_alone_also_after_a_checkpoint(option: str) -> None:
    alone, plain = trained(option, on_host=False, steps=4)
    model, optimizer = trained(option, on_host=True, steps=2)
    saved = 2, model.state_dict(), optimizer.state_dict()
    model, optimizer = trained(option, on_host=True, steps=4, saved=saved)
    for (name, weight), expected in zip(model.state_dict().items(), alone.state_dict().values(), strict=True):
        assert torch.equal(weight, expected), name
    found, expected = optimizer.state_dict(), plain.state_dict()
    torch.testing.assert_close(found["state"], expected["state"], rtol=0, atol=0)
    assert found["param_groups"] == expected["param_groups"]


def test_a_shard_stays_one_in_host_memory() -> None:
    pytest.importorskip("triton")
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cuda", (2,))
        with fake_gpu():
            weight = nn.Parameter(DTensor.from_local(torch.ones(4, 4, device="cuda"), mesh, [Shard(0)]))
            optimizer = keep_state_on_host(torch.optim.AdamW([weight], fused=True))
            for _ in range(2):
                weight.grad = torch.zeros_like(weight)
                optimizer.step()
            average = optimizer.state[weight]["exp_avg"]
            assert isinstance(average, DTensor)
            assert (average.to_local().device.type, average.placements) == ("cpu", (Shard(0),))
    finally:
        distributed.destroy_process_group()
