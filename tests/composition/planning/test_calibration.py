"""What the doctor measured reaches plans and runs, and only those it is about."""

from pathlib import Path
from typing import Any

import pytest

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.observed.measured import Calibration, MeasuredDevice, Measurements
from lmtrain.composition.command_line.compose import compose_config
from lmtrain.composition.nodes.check import check_node
from lmtrain.composition.planning.calibration import (
    calibration_key,
    calibration_of,
    kind_here,
    measured_flops,
    peak_here,
    threads_here,
)
from lmtrain.composition.planning.setting import planned_setting
from lmtrain.precision.cpu_features import cpu_name
from lmtrain.tracking.measurements import write_measurements

BATCH = BatchPlan(context_tokens=64, micro_batch_sequences=4, accumulation_micro_steps=1, num_ranks=1)
CPU = MeasuredDevice(
    kind="cpu", name=cpu_name(), threads=2, default_threads=2, matmul_flops={"fp32": 2e11, "bf16": 3e11}
)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return compose_config(["tokenizer=byte_level", "precision=fp32", f"run.cache={tmp_path}"])


def test_a_calibration_is_of_one_config_and_batch(config: dict[str, Any], tmp_path: Path) -> None:
    measured = Measurements(devices=(CPU,))
    found = Calibration(step_seconds=0.25, num_steps=30)
    write_measurements(tmp_path, measured.with_calibration(calibration_key(config, BATCH, measured), found))
    assert calibration_of(config, BATCH) == found
    other = BatchPlan(context_tokens=64, micro_batch_sequences=2, accumulation_micro_steps=2, num_ranks=1)
    assert calibration_of(config, other) is None
    assert calibration_of({**config, "optimizer": {"_target_": "other"}}, BATCH) is None
    assert calibration_of({**config, "cluster": {**config["cluster"], "device": "NVIDIA H200"}}, BATCH) is None


def test_the_measured_peak_is_of_this_processor_and_so_many_threads(config: dict[str, Any], tmp_path: Path) -> None:
    setting = planned_setting(config, allowed=[])
    assert peak_here(config, setting) is None
    write_measurements(tmp_path, Measurements(devices=(CPU,)))
    found = peak_here(config, setting)
    assert found is not None
    assert found.flops == 2e11
    assert peak_here({**config, "trainer": {**config["trainer"], "cpu_threads": 1}}, setting) is None


def test_threads_are_as_asked_or_the_environment_s_or_torch_s_share(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, trainer = Measurements(devices=(CPU,)), config["trainer"]
    assert threads_here(config, measured) == 2
    assert threads_here(config, Measurements()) is None
    assert threads_here({**config, "trainer": {**trainer, "devices": 2}}, measured) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_here(config, measured) == 3
    assert threads_here({**config, "trainer": {**trainer, "cpu_threads": 5}}, measured) == 5


def test_a_gpu_counts_unless_the_config_trains_on_the_cpu(config: dict[str, Any], tmp_path: Path) -> None:
    measured = Measurements(devices=(MeasuredDevice(kind="gpu", name="Mine", matmul_flops={"fp32": 1e14}),))
    assert kind_here(config, measured) == "gpu"
    assert kind_here({**config, "trainer": {**config["trainer"], "accelerator": "cpu"}}, measured) == "cpu"
    write_measurements(tmp_path, measured)
    found = peak_here(config, planned_setting(config, allowed=[]))
    assert found is not None
    assert found.flops == 1e14


def test_a_plan_and_a_run_have_the_same_key(config: dict[str, Any]) -> None:
    measured = Measurements(devices=(CPU,))
    checked = {
        **config,
        "model": check_node(config["model"], key="model"),
        "loss": check_node(config["loss"], key="loss"),
    }
    written = {**checked, "optimizer": {**config["optimizer"], "lr": "25ms"}}
    assert calibration_key(checked, BATCH, measured) == calibration_key(config, BATCH, measured)
    assert calibration_key(written, BATCH, measured) != calibration_key(config, BATCH, measured)


def test_the_roofline_is_what_products_were_measured_to_reach(config: dict[str, Any], tmp_path: Path) -> None:
    assert measured_flops(config, "bf16") is None
    write_measurements(tmp_path, Measurements(devices=(CPU,)))
    threads = {**config, "trainer": {**config["trainer"], "accelerator": "cpu", "cpu_threads": 2}}
    assert measured_flops(threads, "bf16") == 3e11
    assert measured_flops(threads, "fp8") is None
