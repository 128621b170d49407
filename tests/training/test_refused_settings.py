"""Settings that no option of these rooms takes: the key and a fix are named."""

import re
from types import SimpleNamespace

import pytest
import torch

from lmtrain.adapters.lora import Lora
from lmtrain.errors import ConfigurationError
from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.rope import RopeScaling
from lmtrain.optim import schedules, weight_decay_schedules
from lmtrain.parallel.activation_checkpoint import memory_budget
from lmtrain.training.hyperparameters import Hyperparameters
from lmtrain.training.intervals import LastStep
from lmtrain.training.objectives.dpo import DirectPreference
from lmtrain.training.objectives.grpo import GroupRelativePolicy
from lmtrain.training.objectives.rewards import WrittenAnswer, matches, right_text
from lmtrain.training.own_rows import RowsDataModule
from lmtrain.training.profilers import MemoryTrace
from lmtrain.training.spikes import SpikeFilter
from lmtrain.training.weight_average import WeightAverage


def spikes(**settings):
    return SpikeFilter(**{"num_sigmas": 6, "window_steps": 128} | settings)


def grpo(**settings):
    return GroupRelativePolicy(**{"rewards": {"text": right_text}} | settings)


def lora(**settings):
    return Lora(**{"rank": 4, "alpha": 8} | settings)


def profiled(**settings):
    given = {"wait_steps": 1, "num_ranks": 2, "context": SimpleNamespace(rank=0, last_step=LastStep(9))}
    return MemoryTrace(**given | settings)


def sgd_with(name):
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    return Hyperparameters(sgd, lr=lambda *_: 1.0, **{name: lambda *_: 1.0})


ANSWER = WrittenAnswer(text="12", question="7 + 5?", expected="12", ended=True)
REFUSED = [
    (lambda: spikes(num_sigmas=0), "spikes.num_sigmas must be above 0, got 0. Did you mean 6?"),
    (lambda: spikes(window_steps=2), "spikes.window_steps must be at least 4 and at most 1,000,000, got 2"),
    (lambda: WeightAverage(decay=1.0), "weight_average.decay must be at least 0 and below 1"),
    (lambda: grpo(num_generations=1), "objective.num_generations must be at least 2"),
    (lambda: grpo(temperature=0.0), "objective.temperature must be above 0, got 0. Did you mean 1?"),
    (lambda: grpo(weights={"txet": 1.0}), "objective.weights.txet must name a reward; there are: text"),
    (lambda: grpo(rewards={}), "objective.rewards must name a reward"),
    (lambda: DirectPreference(beta=0.1, label_smoothing=0.5), "objective.label_smoothing must be at least 0 and below"),
    (lambda: DirectPreference(beta=0.1, loss_type="exo_pair"), "objective.label_smoothing must be above 0"),
    (lambda: DirectPreference(beta=0.1, gamma=1), "objective.gamma: must be 0 with objective.loss_type=sigmoid"),
    (lambda: matches(ANSWER, pattern="("), "pattern='(' is not a regular expression"),
    (lambda: lora(alpha=0), "adapter.alpha must be above 0, got 0. Did you mean 8?"),
    (lambda: lora(targets=[]), "adapter.targets=[]"),
    (lambda: ChunkedCrossEntropy(chunk_tokens=0), "loss.chunk_tokens=0"),
    (lambda: Experts(num_experts=2, num_experts_per_token=3), "num_experts_per_token must be at least 1 and at most 2"),
    (lambda: Experts(num_experts=6, num_experts_per_token=1, num_groups=4), r"num_groups: must divide .*mean 2"),
    (lambda: Experts(num_experts=6, num_experts_per_token=3, num_groups=3), "num_experts_per_token .* at most 2"),
    (lambda: Experts(num_experts=6, num_experts_per_token=3, scores="sigmod"), "Did you mean 'sigmoid'?"),
    (lambda: Experts(num_experts=6, num_experts_per_token=3, dense_layers=[0]), "needs model.experts.dense_width"),
    (lambda: RopeScaling(high_frequency_factor=1.0), "model.rope_scaling.high_frequency_factor"),
    (lambda: memory_budget(None, fraction=1.0), "recompute.fraction must be above 0 and below 1, got 1. Did you mean"),
    (lambda: schedules.warmup_cosine(1, 9, final_fraction=2.0), "schedule.final_fraction must be .* got 2. .* 0.02?"),
    (lambda: schedules.linear(1, 9, final_fraction=0, peak_fraction=0), "schedule.peak_fraction must be above 0"),
    (lambda: schedules.constant(1, 9, warmup_steps=1, warmup_fraction=0.1), "schedule.warmup_steps=1 and .*=null"),
    (lambda: schedules.cooldown(1, 9, final_fraction=0, start_step=None), "schedule.start_step .*resume=runs"),
    (lambda: schedules.cooldown(1, 9, final_fraction=0, start_step=9), "schedule.start_step .*budget.steps=10"),
    (lambda: schedules.range_test(1, 9, lowest=2, highest=1), "schedule.lowest must be above 0 and below 1"),
    (lambda: weight_decay_schedules.linear(1, 9, final_fraction=2), "weight_decay_schedule.final_fraction must be"),
    (lambda: sgd_with("momentum"), "momentum_schedule has no effect.*momentum_schedule=none"),
    (lambda: sgd_with("weight_decay"), "weight_decay_schedule has no effect.*weight_decay_schedule=none"),
    (lambda: profiled(wait_steps=9), "profiler.wait_steps must be at least 0 and at most 8, got 9. Did you mean 8?"),
    (lambda: profiled(ranks=[2]), "profiler.ranks must be at least 0 and below 2"),
    (lambda: RowsDataModule(iter([])), "rows must be readable more than once"),
]


@pytest.mark.parametrize(("build", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_refusal_names_the_key_and_a_fix(build, message):
    pattern = message if ".*" in message else re.escape(message)
    with pytest.raises(ConfigurationError, match=pattern):
        build()
