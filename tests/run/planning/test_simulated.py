"""A config's simulated step: alike blocks repeated to the last byte and second, and refusals before it is run."""

import pytest

from lmtrain.accounting.training_plan.simulated_step import StepFigures
from lmtrain.run.planning import simulated
from lmtrain.run.planning.simulated import simulation
from lmtrain.run.run_config import RunConfig
from tests.configs import config_of

SMALL = (
    "model=gpt2_124m",
    "model.num_layers=8",
    "model.width=64",
    "model.num_heads=8",
    "model.max_context_tokens=64",
    "cluster=h100_8x",
    "optimizer=adamw",
    "compile=none",
    "batch.context_tokens=64",
    "batch.tokens_per_step=1024",
    "batch.micro_batch_sequences=1",
)


def config(*words: str) -> RunConfig:
    """Return a config of eight small blocks on one node, two micro-steps a step."""
    return config_of(*SMALL, *words)


def test_a_few_alike_blocks_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = simulation(config("strategy=fsdp"))
    fleet = asked.run()
    repeated = fleet.figures
    monkeypatch.setattr(simulated, "FEW_BLOCKS", (8, 9))
    whole: StepFigures = asked.run().figures
    assert repeated.time.seconds == pytest.approx(whole.time.seconds, rel=1e-6)
    assert repeated.time.exposed_seconds == pytest.approx(whole.time.exposed_seconds, rel=1e-4)
    assert repeated.peak_bytes == pytest.approx(whole.peak_bytes, rel=1e-6)
    for one, other in zip(repeated.messages, whole.messages, strict=True):
        assert one.num_messages == pytest.approx(other.num_messages)
        assert one.sent_bytes == pytest.approx(other.sent_bytes)
    weights = sum(parameter.numel() for parameter in asked.model.parameters()) * 4
    held = whole.peaks["forward"]
    assert held["weights"] == pytest.approx(weights / 8, rel=0.02), "sharded over eight ranks, and buffers"
    assert held["optimizer"] == pytest.approx(2 * weights / 8, rel=0.01)
    tokens = fleet.batch.tokens_per_step / fleet.batch.num_ranks
    assert whole.flops == pytest.approx(tokens * fleet.flops_per_token, rel=0.15), "causal attention is half"
