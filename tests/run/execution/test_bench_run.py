import tempfile
from types import SimpleNamespace

import pytest

from lmtrain.errors import EnvironmentProblem
from lmtrain.run.execution import bench_run
from lmtrain.run.planning.auto_batch import HeldDevice
from tests import tiny
from tests.configs import config_of

SMALL = [*tiny.TINY, "trainer.accelerator=cpu"]


def test_a_model_that_the_machine_cannot_hold_is_refused_by_its_plan(monkeypatch) -> None:
    config = config_of(*SMALL)
    bench_run.require_memory(config)
    monkeypatch.setattr(bench_run, "held_device", lambda _: HeldDevice(None, 10_000))
    with pytest.raises(EnvironmentProblem, match=r"needs at least .* GB on a device, by its plan, and 0.0 GB are free"):
        bench_run.require_memory(config)


def test_activations_count_where_the_state_alone_would_fit(monkeypatch) -> None:
    config = config_of(*SMALL)
    monkeypatch.setattr(bench_run, "memory_of", lambda *_: SimpleNamespace(total=3e6))
    monkeypatch.setattr(bench_run, "held_device", lambda _: HeldDevice(None, 2_000_000))
    with pytest.raises(EnvironmentProblem, match=r"needs 0.0 GB on a device"):
        bench_run.require_memory(config)


def test_no_place_for_temporary_files_is_said(monkeypatch) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    with pytest.raises(EnvironmentProblem, match="name one in TMPDIR"):
        bench_run.measure(config_of(*SMALL), overrides=[], seconds=1.0)


def test_an_interrupt_that_the_trainer_swallows_is_one(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)

    def interrupted(*_: object) -> None:
        raise SystemExit(1)

    monkeypatch.setattr(bench_run, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench_run.measure(config_of(*SMALL), overrides=[], seconds=1.0)


def test_the_rate_of_products_is_measured_where_there_are_such() -> None:
    rate = bench_run.matmul_rate("fp32", uses_gpu=False)
    assert rate is not None
    assert rate.flops > 1e8
    assert bench_run.matmul_rate("fp8", uses_gpu=False) is None
