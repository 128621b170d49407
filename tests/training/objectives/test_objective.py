import pytest
import torch

from lmtrain.training.objectives.objective import ObjectiveSums
from lmtrain.training.step_metrics import StepMetrics


def sums(objective: float, *further: float) -> ObjectiveSums:
    value = torch.tensor(objective, dtype=torch.float64)
    return ObjectiveSums(value, value, torch.tensor(100), torch.tensor(further, dtype=torch.float64))


def test_a_step_divides_an_objective_and_its_measures_by_its_own_count() -> None:
    metrics = StepMetrics()
    for one in (sums(3.0, 2, 1, 1.0), sums(5.0, 6, 3, 7.0)):  # loss, count, examples, a measure
        metrics.add_micro_step(one)
    step = metrics.reduce_micro_steps()
    assert float(step.divisor) == 8
    metrics.finish_step(1, sums=step, gradient_norm=torch.tensor(1.0), lr=0.1)
    (record,) = metrics.drain()
    assert (record.loss, record.further, record.num_tokens) == (pytest.approx(1.0), (2.0,), 200)
