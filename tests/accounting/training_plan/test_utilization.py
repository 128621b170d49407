import pytest

from lmtrain.accounting.training_plan.utilization import model_flops_utilization


def test_a_widely_shared_log_implies_nine_percent():
    # 336M parameters, 8 H100, 2.84 s for a step of 2^20 tokens.
    tokens_per_second = 2**20 / 2.84
    assert tokens_per_second == pytest.approx(369_217, rel=1e-6)
    utilization = model_flops_utilization(
        6 * 336e6, tokens_per_second=tokens_per_second, peak_flops=989.4e12, num_devices=8
    )
    assert utilization == pytest.approx(0.094, abs=5e-4)
