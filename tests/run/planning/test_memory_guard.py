from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.training_plan.fit import memory_of
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.execution.check_config import check_config
from lmtrain.run.planning import auto_batch, memory_guard
from lmtrain.run.planning.auto_batch import HeldDevice, setting_here
from lmtrain.run.planning.memory_guard import require_memory
from lmtrain.run.run_config import RunConfig

BATCH = BatchPlan(context_tokens=256, micro_batch_sequences=8, accumulation_micro_steps=1, num_ranks=1)


def config(tmp_path: Path) -> RunConfig:
    return check_config(compose_config([f"run.cache={tmp_path}", "compile=none", "precision=fp32"]), allowed=[])


def hold(num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (auto_batch, memory_guard):
        monkeypatch.setattr(module, "held_device", lambda _: HeldDevice(None, num_bytes))


def test_a_batch_that_takes_all_memory_is_refused_with_the_accumulation_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = config(tmp_path)
    setting = setting_here(asked)
    hold(memory_of(setting, replace(BATCH, micro_batch_sequences=2, accumulation_micro_steps=4)).total, monkeypatch)
    message = r"micro_batch_sequences=8 of 256 tokens needs .* nearest that fits: batch.micro_batch_sequences=2, "
    with pytest.raises(ConfigurationError, match=message):
        require_memory(asked, BATCH, num_parameters=4_000_000)


def test_a_model_that_takes_all_memory_is_refused_with_what_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(20_000_000, monkeypatch)
    with pytest.raises(ConfigurationError, match=r"not one sequence fits: take a smaller model, recompute=every_block"):
        require_memory(config(tmp_path), BATCH, num_parameters=4_000_000)


def test_a_run_that_fits_goes_on_and_a_small_one_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(500_000_000, monkeypatch)
    require_memory(config(tmp_path), BATCH, num_parameters=40_000_000)
    monkeypatch.setattr(memory_guard, "setting_here", lambda *_, **__: pytest.fail("measured"))
    require_memory(config(tmp_path), BATCH, num_parameters=1_000_000)
