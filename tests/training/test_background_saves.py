"""Checkpoints written while training goes on."""

import logging
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lmtrain.training.checkpointing import background_saves
from lmtrain.training.checkpointing.background_saves import BackgroundSaves
from lmtrain.training.checkpointing.host_copy import HostCopier, num_state_bytes

CPU = torch.device("cpu")


def copied(thing):
    return HostCopier(CPU).copy(thing).restore()


DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint16, torch.bool, torch.complex64]


@given(sizes=st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=5), dtype=st.sampled_from(DTYPES))
def test_tensors_come_back_to_the_last_bit(sizes, dtype):
    torch.manual_seed(0)
    tensors = [torch.randint(0, 255, (*size, 8), dtype=torch.uint8).float().to(dtype) for size in sizes]
    for tensor, back in zip(tensors, copied(tensors), strict=True):
        assert (back.dtype, back.shape) == (dtype, tensor.shape)
        assert back.untyped_storage().tolist() == tensor.untyped_storage().tolist()


def test_tensors_that_share_memory_share_it_again():
    whole = torch.arange(1000.0)
    first, part, turned = copied([whole, whole[10:20], whole.view(10, 100).T])
    first[10] = -1
    assert (part[0], turned[10, 0]) == (-1, -1)
    assert turned.stride() == (1, 100)


def test_quantized_state_comes_back_and_its_bytes_are_those_of_its_parts():
    from torchao.optim.subclass_8bit import OptimState8bit

    state = OptimState8bit.zeros((64, 64), block_size=256)
    state.copy_(torch.randn(64, 64))
    assert torch.equal(copied(state).dequantize(), state.dequantize())
    assert num_state_bytes(state) == 64 * 64 + 16 * 4 + 256 * 4


@dataclass(frozen=True)
class Sum:
    """Write the sum of a tensor to a file."""

    values: Tensor
    path: Path

    def __call__(self) -> int:
        return self.path.write_text(str(float(self.values.sum())))


@dataclass(frozen=True)
class Refuse:
    """Fail as on a full disk."""

    def __call__(self) -> int:
        raise OSError("No space left on device")


STRATEGY = SimpleNamespace(broadcast=lambda one: one, reduce_boolean_decision=bool)
TRAINER = SimpleNamespace(strategy=STRATEGY, is_global_zero=True, num_devices=1, optimizers=[], world_size=1)
MODULE = SimpleNamespace(device=CPU, parameters=nn.Linear(1000, 1).parameters, buffers=list)


def test_a_job_is_done_while_what_it_is_of_changes_and_a_failed_one_is_reported_at_the_next_save(tmp_path):
    values, outcomes = torch.ones(1000), []
    saves = BackgroundSaves(from_bytes=4000, report=outcomes.append)
    assert saves.is_possible(TRAINER, MODULE)
    for step in (1, 2, 3):
        saves.begin(Refuse() if step == 2 else Sum(values, tmp_path / str(step)))
        saves.has_begun(step, stall_seconds=0.5, wait_seconds=0.25)
        saves.hold_compute()
        values += 1
        outcome = saves.settle(TRAINER)
        assert outcome is not None
        assert (outcome.step, outcome.problem) == (step, "No space left on device" if step == 2 else None)
    assert [(tmp_path / step).read_text() for step in ("1", "3")] == ["1000.0", "3000.0"]
    assert [outcome.num_bytes for outcome in outcomes] == [6, 0, 6]
    assert saves.settle(TRAINER) is None


@pytest.mark.parametrize(("from_bytes", "free"), [(None, None), (4005, None), (0, 4000)])
def test_training_waits_where_a_state_is_small_or_the_host_has_no_room_for_a_copy(
    from_bytes, free, monkeypatch, caplog
):
    monkeypatch.setattr(background_saves, "available_bytes", lambda: free)
    with caplog.at_level(logging.WARNING):
        assert not BackgroundSaves(from_bytes=from_bytes, report=print).is_possible(TRAINER, MODULE)
    assert ("of host memory is free" in caplog.text) == (free is not None)
