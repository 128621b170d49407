from lmtrain.accounting.observed.measured import Calibration, MeasuredDevice, Measurements, measurements_from_json

TWO = MeasuredDevice(kind="cpu", name="EPYC", threads=2, default_threads=2, matmul_flops={"fp32": 2e11})
ONE = MeasuredDevice(kind="cpu", name="EPYC", threads=1, matmul_flops={"fp32": 1e11})
GPU = MeasuredDevice(kind="gpu", name="Mine", matmul_flops={"bf16": 1e14})
ALL = Measurements(devices=(TWO, ONE, GPU), calibrations={"a": Calibration(step_seconds=0.5, num_steps=30)})


def test_everything_comes_back_from_its_file_and_another_version_s_is_nothing():
    assert measurements_from_json(ALL.to_json()) == ALL
    assert measurements_from_json({"devices": [{"no": 1}]}) == Measurements()
    assert measurements_from_json({}) == Measurements()
    more = ALL.with_calibration("b", Calibration(step_seconds=1.0, num_steps=40))
    assert more.calibrations.keys() == {"a", "b"}
