from dataclasses import replace

from lmtrain.accounting.observed.measured import Calibration, MeasuredDevice, Measurements, measurements_from_json

TWO = MeasuredDevice(kind="cpu", name="EPYC", threads=2, default_threads=2, matmul_flops={"fp32": 2e11})
ONE = MeasuredDevice(kind="cpu", name="EPYC", threads=1, matmul_flops={"fp32": 1e11})
GPU = MeasuredDevice(kind="gpu", name="Mine", matmul_flops={"bf16": 1e14})
ALL = Measurements(devices=(TWO, ONE, GPU), calibrations={"a": Calibration(step_seconds=0.5, num_steps=30)})


def test_a_measurement_in_doubt_says_so_and_takes_no_rate_away():
    busy = MeasuredDevice(kind="cpu", name="EPYC", threads=1, matmul_flops={"fp32": 5e10}, doubt="busy: 5 tries")
    assert ALL.with_device(busy).find("cpu", name="EPYC", threads=1) == ONE
    new = Measurements().with_device(busy)
    peak = new.devices[0].peak("fp32")
    assert peak is not None
    assert peak.source.endswith("on 1 thread; busy: 5 tries")
    faster = replace(busy, matmul_flops={"fp32": 8e10})
    assert new.with_device(faster).with_device(busy).devices == (faster,)
    assert new.with_device(ONE).devices == (ONE,)


def test_everything_comes_back_from_its_file_and_another_version_s_is_nothing():
    assert measurements_from_json(ALL.to_json()) == ALL
    assert measurements_from_json({"devices": [{"no": 1}]}) == Measurements()
    assert measurements_from_json({}) == Measurements()
    more = ALL.with_calibration("b", Calibration(step_seconds=1.0, num_steps=40))
    assert more.calibrations.keys() == {"a", "b"}
