import pytest

from lmtrain.accounting.training_plan.utilization import model_flops_utilization, training_seconds, usd

DAY = 86_400


@pytest.mark.parametrize(
    ("parameters", "tokens", "num_devices", "peak", "utilization", "days"),
    [
        (70e9, 15e12, 1024, 989.5e12, 0.5, 143.9),
        (405e9, 15.6e12, 16_000, 989.4e12, 0.4, 69.3),
        (1.2735e9, 300e9, 8, 989.4e12, 0.5, 6.71),
        (8e9, 160e9, 8, 989.4e12, 0.5, 22.46),
        (1.2358e9, 20e9, 8, 989.4e12, 0.4, 13.0 / 24),
    ],
)
def test_known_runs_take_the_known_days(parameters, tokens, num_devices, peak, utilization, days):
    seconds = training_seconds(
        6 * parameters * tokens, peak_flops=peak, num_devices=num_devices, utilization=utilization
    )
    assert seconds / DAY == pytest.approx(days, rel=2e-3)


def test_a_widely_shared_log_implies_nine_percent():
    # 336M parameters, 8 H100, 2.84 s for a step of 2^20 tokens.
    tokens_per_second = 2**20 / 2.84
    assert tokens_per_second == pytest.approx(369_217, rel=1e-6)
    utilization = model_flops_utilization(
        6 * 336e6, tokens_per_second=tokens_per_second, peak_flops=989.4e12, num_devices=8
    )
    assert utilization == pytest.approx(0.094, abs=5e-4)


def test_price_of_known_runs():
    assert usd(5 * 3600, num_devices=8, usd_per_gpu_hour=18 / 8) == pytest.approx(90)
    assert usd(22 * DAY, num_devices=8, usd_per_gpu_hour=3) == pytest.approx(12_672)
