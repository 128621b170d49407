"""What the doctor measured reaches plans and runs, and only those it is about."""

from pathlib import Path
from typing import Any

import pytest

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.observed.measured import Calibration, MeasuredDevice, Measurements
from lmtrain.precision.cpu_features import cpu_name
from lmtrain.run.planning.calibration import (
    calibration_key,
    calibration_of,
)
from lmtrain.run.run_config import RunConfig
from lmtrain.tracking.machine import write_measurements
from tests.configs import config_of

BATCH = BatchPlan(context_tokens=64, sequences_per_micro_step=4, accumulation_micro_steps=1, num_ranks=1)
CPU = MeasuredDevice(
    kind="cpu", name=cpu_name(), threads=2, default_threads=2, matmul_flops={"fp32": 2e11, "bf16": 3e11}
)


def changed(config: RunConfig, group: str, **settings: Any) -> RunConfig:
    return config.changed(**{group: {**config.values[group], **settings}})


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return config_of("tokenizer=byte_level", "precision=fp32", f"run.cache={tmp_path}")


def test_a_calibration_is_of_one_config_and_batch(config: RunConfig, tmp_path: Path) -> None:
    measured = Measurements(devices=(CPU,))
    found = Calibration(step_seconds=0.25, num_steps=30)
    write_measurements(tmp_path, measured.with_calibration(calibration_key(config, BATCH, measured), found))
    assert calibration_of(config, BATCH) == found
    other = BatchPlan(context_tokens=64, sequences_per_micro_step=2, accumulation_micro_steps=2, num_ranks=1)
    assert calibration_of(config, other) is None
    assert calibration_of(config.changed(optimizer={"_target_": "other"}), BATCH) is None
    assert calibration_of(changed(config, "cluster", device="NVIDIA H200"), BATCH) is None
    assert calibration_of(config.changed(seed=7), BATCH) == found
