import pytest

from lmtrain.run.planning.setting import planned_setting, speed_line
from tests.configs import config_of


def setting(*words):
    return planned_setting(config_of(*words))


@pytest.mark.parametrize(
    ("precision", "teraflops"),
    [
        ("fp32", 66.9),
        ("tf32", 494.7),
        ("fp16_mixed", 989.4),
        ("bf16_mixed", 989.4),
        ("bf16_true", 989.4),
        ("fp8", 989.4),  # of bf16: most of a step's products, or the rest, are in it
    ],
)
def test_every_precision_is_planned_with_its_own_peak_on_devices_that_are_not_here(precision, teraflops):
    found = setting("cluster=h100_8x", f"precision={precision}")
    peak = found.peak()
    assert peak is not None
    assert peak.flops == pytest.approx(teraflops * 1e12)
    assert (speed_line(found) is not None) == (precision == "fp8")
