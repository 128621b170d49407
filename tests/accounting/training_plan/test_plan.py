import subprocess
import sys

import pytest

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.accounting.budgets import Budget, horizon
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape
from lmtrain.accounting.training_plan.plan import Plan


@pytest.fixture
def plan():
    shape = ModelShape(1000, 100, 900, 1000, (AttentionShape(2, 8),))
    batch = plan_batches(Batch(context_tokens=32, tokens_per_step=256, micro_batch_sequences=2), num_ranks=2)
    flops = flops_per_token(shape, batch.context_tokens)
    run = horizon(
        Budget(tokens=1000),
        tokens_per_step=batch.tokens_per_step,
        num_active_parameters=1000,
        flops_per_token=flops.palm,
    )
    return Plan(shape=shape, batch=batch, horizon=run, flops_per_token=flops, train_tokens=500, epoch_tokens=512)


def test_json_has_the_keys_that_scripts_rely_on(plan):
    report = plan.to_json()
    assert report["parameters"] == {"total": 1000, "embedding": 100, "matmul": 900, "active": 1000, "trained": 1000}
    assert report["batch"]["tokens_per_step"] == 256
    assert report["horizon"]["steps"] == 4
    assert report["horizon"]["tokens"] == 1024
    assert report["horizon"]["epochs"] == 2.0
    assert report["horizon"]["flops"] == 1024 * report["flops_per_token"]["palm"]
    assert set(report["flops_per_token"]) == {"palm", "causal", "six_n"}


def test_what_is_not_known_is_null_or_absent(plan):
    report = plan.to_json()
    unknown = {"flops": None, "measured_flops": None, "single_device_tokens_per_second": None}
    assert report["peak"] == {**unknown, "source": "unknown", "doubt": "", "measured_doubt": ""}
    assert "memory" not in report
    assert "time" not in report


def test_accounting_imports_no_torch():
    modules = "lmtrain.accounting.training_plan.plan, lmtrain.accounting.machine.hardware"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
