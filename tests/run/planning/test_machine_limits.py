from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.training_plan.setting import fits, memory_of
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.planning import machine_limits
from lmtrain.run.planning.machine_limits import (
    available_bytes,
    batch_of,
    is_out_of_memory,
    out_of_memory,
    require_disk,
    require_memory,
    setting_here,
)
from lmtrain.run.planning.make_plan import planned_checkpoints
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.run_config import read_config


def config(tmp_path, *words):
    settings = [f"run.cache={tmp_path}", "compile=none", "precision=fp32", "batch.micro_batch_sequences=auto"]
    return read_config(compose_config([*settings, *words])).checked()


def test_little_memory_accumulates_to_the_same_tokens(tmp_path, monkeypatch):
    asked = config(tmp_path)
    setting = setting_here(asked)
    whole = batch_of(asked)
    for sequences in (1, 2, 4):
        part = replace(whole, sequences_per_micro_step=sequences, accumulation_micro_steps=8 // sequences)
        needed = memory_of(setting, part).total
        monkeypatch.setattr(machine_limits, "held_device", lambda _, needed=needed: (None, needed))
        batch = batch_of(asked)
        assert batch.sequences_per_micro_step == sequences
        assert batch.tokens_per_step == 2048
        assert not fits(replace(setting, held_bytes=needed), whole)


def test_a_device_too_small_for_one_sequence_is_refused_with_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_limits, "held_device", lambda _: (None, 10_000_000))
    with pytest.raises(ConfigurationError, match=r"not even 1 fits, which needs 0\.\d GB of 0\.0 GB"):
        batch_of(config(tmp_path))


@pytest.mark.faults
def test_out_of_memory_says_what_fits_with_numbers(tmp_path, monkeypatch):
    asked = config(tmp_path)
    whole = batch_of(asked)
    setting = setting_here(asked)
    for_two = memory_of(setting, replace(whole, sequences_per_micro_step=2, accumulation_micro_steps=4)).total
    monkeypatch.setattr(machine_limits, "held_device", lambda _: (None, for_two))
    message = str(out_of_memory(asked, whole))
    assert "out of memory at batch.micro_batch_sequences=8: the plan needs 0." in message
    assert "set batch.micro_batch_sequences=2" in message


def test_failures_of_memory_are_told_from_others():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RuntimeError) as failure:
        torch.empty(2**60)
    assert is_out_of_memory(failure.value)
    for said in (
        "CUDA error: out of memory\nCUDA kernel errors might be",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
    ):
        assert is_out_of_memory(RuntimeError(said))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


BATCH = BatchPlan(context_tokens=256, sequences_per_micro_step=8, accumulation_micro_steps=1, num_ranks=1)


def test_a_run_larger_than_this_machine_is_refused_with_the_accumulation_that_fits(tmp_path, monkeypatch):
    asked = config(tmp_path, "batch.micro_batch_sequences=8")
    setting = setting_here(asked)
    two = memory_of(setting, replace(BATCH, sequences_per_micro_step=2, accumulation_micro_steps=4)).total
    for held, message in ((two, "set batch.micro_batch_sequences=2"), (20_000_000, "a smaller model")):
        monkeypatch.setattr(machine_limits, "held_device", lambda _, held=held: (None, held))
        with pytest.raises(ConfigurationError, match=message):
            require_memory(asked, BATCH, num_parameters=4_000_000)
    monkeypatch.setattr(machine_limits, "held_device", lambda _: (None, 500_000_000))
    require_memory(asked, BATCH, num_parameters=40_000_000)


PARAMETERS = TrainedParameters(
    num_total=1_000_000, num_hidden_matrix=800_000, num_largest_block=200_000, num_outside_blocks=200_000
)


@pytest.mark.faults
def test_checkpoints_that_outgrow_the_disk_are_refused_before_the_run(tmp_path, monkeypatch):
    asked = read_config(compose_config(["compile=none", "precision=fp32", "optimizer=adamw"])).checked()
    planned = planned_checkpoints(asked, planned_setting(asked), PARAMETERS)
    assert planned.checkpoint_bytes == 12_000_000  # weights and AdamW's two moments, of four bytes each
    folder = tmp_path / "runs" / "new"

    def require(free: int, *, num_steps: int = 1_000, of=asked) -> None:
        monkeypatch.setattr(machine_limits.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
        require_disk(of, PARAMETERS, folder=folder, num_steps=num_steps)

    require(planned.kept_bytes)
    with pytest.raises(EnvironmentProblem, match="keep_last"):
        require(planned.kept_bytes - 1)
    require(planned.checkpoint_bytes, num_steps=1)  # a run of one step writes one
    saved = folder / "checkpoints" / "step_1" / "weights"
    saved.parent.mkdir(parents=True)
    saved.write_bytes(bytes(1))
    require(planned.kept_bytes - 1)  # an earlier one makes room
    without = read_config(compose_config(["compile=none", "~callbacks.checkpoint"])).checked()
    require(0, of=without)


@pytest.mark.parametrize(("limit", "free"), [("4000", 3000), ("max", 5 * 1024), ("99999", 5 * 1024), (None, 5 * 1024)])
def test_free_memory_is_the_kernel_s_within_the_control_group(limit, free, tmp_path):
    (tmp_path / "meminfo").write_text("MemFree: 2 kB\nMemAvailable:    5 kB\n")
    if limit:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("1000\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == free
    assert available_bytes(tmp_path / "none", tmp_path / "none") is None
