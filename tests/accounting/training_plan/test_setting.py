"""Memory of a device at the moments of a step, and the fit of a micro batch."""

from dataclasses import replace
from typing import Any

import pytest

from lmtrain.accounting.batches import Batch, BatchPlan, plan_batches
from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.model.memory import HostMemory, TrainedParameters
from lmtrain.accounting.model.model_facts import LinearBytes, ModelFacts
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.options.parts import RecomputeFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.training_plan.setting import (
    Setting,
    fits,
    largest_micro_batch,
    memory_of,
)
from lmtrain.run.planning.choices import setting_on_paper
from tests import facts
from tests.configs import config_of

MILLION = 10**6
SHARDED = ModelSpread(shards_over="all ranks", reduces_every_micro_step=True)
NONE = LinearBytes(fixed=0.0, per_sequence=0.0)


def setting(
    num_parameters: float = MILLION, *, precision: str = "fp32", optimizer: str = "adamw", **more: Any
) -> Setting:
    """Return a setting of a model without embeddings and workspace of a loss."""
    num = int(num_parameters)
    parameters = more.pop("parameters", None) or TrainedParameters(
        num_total=num, num_hidden_matrix=num, num_largest_block=num // 10, num_outside_blocks=0
    )
    of_sequence = LinearBytes(fixed=0.0, per_sequence=more.pop("activations", 0.0))
    known = ModelFacts(
        shape=ModelShape(num, 0, num, num, ()),
        components={},
        parameters=parameters,
        activations=of_sequence,
        block_workspace=of_sequence,
        block_workspace_of_many=NONE,
    )
    settings: dict[str, Any] = {"num_ranks": 1, "spread": ModelSpread(), "recompute": RecomputeFacts(share=0.0)} | more
    return Setting(
        cluster=Cluster(name="x"),
        precision=facts.precision(precision),
        state=facts.optimizer(optimizer).state,
        known_facts=known,
        **settings,
    )


def batch(sequences: int, num_ranks: int = 1) -> BatchPlan:
    asked = Batch(context_tokens=10, tokens_per_step=240 * num_ranks, micro_batch_sequences=sequences)
    return plan_batches(asked, num_ranks=num_ranks)


@pytest.mark.parametrize(
    ("precision", "optimizer", "bytes_per_parameter"),
    [
        ("fp32", "sgd", 8), ("fp32", "momentum", 12), ("fp32", "adagrad", 12), ("fp32", "rmsprop", 12),
        ("fp32", "adamw", 16), ("bf16_true", "adamw", 8), ("bf16_mixed", "adamw", 18),
    ],
)  # fmt: skip
def test_bytes_per_parameter(precision: str, optimizer: str, bytes_per_parameter: int) -> None:
    found = memory_of(setting(1e9, precision=precision, optimizer=optimizer), batch(24))
    assert found.weights + found.weights_copy + found.gradients + found.optimizer == bytes_per_parameter * 10**9


@pytest.mark.parametrize(("num_parameters", "num_h100"), [(70e9, 14), (405e9, 81)])
def test_large_models_need_the_known_number_of_h100(num_parameters: float, num_h100: int) -> None:
    for devices, is_enough in ((num_h100, True), (num_h100 - 1, False)):
        asked = setting(num_parameters, num_ranks=devices, spread=SHARDED)
        assert (memory_of(asked, batch(24, devices)).static <= 80e9) == is_enough


def test_fsdp_sends_the_gradients_of_a_block_and_those_outside_from_copies() -> None:
    for block, outside in ((10, 500), (500, 10)):
        parameters = TrainedParameters(
            num_total=1000, num_hidden_matrix=1000, num_largest_block=block, num_outside_blocks=outside
        )
        asked = setting(1000, precision="bf16_mixed", num_ranks=2, spread=SHARDED, parameters=parameters)
        sent = memory_of(asked, batch(24, 2))
        assert sent.workspace == 500 * (2 + 4)
        assert sent.gathered == (510 * 2 if block > outside else 0)


def test_tensors_are_cut_one_by_one_and_few_experts_along_another_axis() -> None:
    held = TrainedParameters(
        num_total=8 * 64 * 6 + 10 * 4, num_hidden_matrix=0, num_largest_block=0, num_outside_blocks=0,
        tensors={"8x64x6": 1, "10x4": 1},
    )  # fmt: skip
    assert held.held(num_shards=4) == 2 * 64 * 6 + 3 * 4
    assert held.held(num_shards=16) == 8 * 4 * 6 + 4


def test_the_largest_micro_batch_fits_and_the_next_divisor_does_not() -> None:
    asked = setting(activations=1e6, held_bytes=30 * MILLION)
    found = largest_micro_batch(asked, batch(24))
    assert found is not None
    assert (found.sequences_per_micro_step, found.tokens_per_step) == (6, 240)
    assert fits(asked, found)
    assert not fits(asked, batch(8))


def test_a_cpu_holds_its_process_the_copy_of_a_save_and_the_holes_of_its_heap() -> None:
    host = HostMemory(process_bytes=700, snapshot_from_bytes=12_000)
    memory = memory_of(setting(1000, activations=5000 / 24, host=host), batch(24))
    assert (memory.process, memory.snapshot, memory.margin) == (700, 12_000, 5000 * 0.36 + 5000 * 1.1)
    assert memory_of(setting(1000, host=replace(host, snapshot_from_bytes=None)), batch(24)).snapshot == 0


@pytest.mark.parametrize(
    ("model", "num_first", "num_last"),
    [
        ("llama_3_8b", 128_256 * 4096, 128_256 * 4096 + 4096),
        ("llama_3_2_1b", 128_256 * 2048, 128_256 * 2048 + 2048),  # tied: the table is on both
        ("gpt2_124m", (50_257 + 1024) * 768, 50_257 * 768 + 2 * 768),  # positions on the first, tied
    ],
)
def test_the_ends_of_a_pipeline_hold_the_embedding_and_the_head(model: str, num_first: int, num_last: int) -> None:
    config = config_of(f"model={model}", "cluster=h100_8x", "precision=bf16_mixed", "optimizer=adamw")
    config = config.changed(
        strategy={"_target_": "lmtrain.parallel.mesh.mesh", "option": "pipeline", "pipeline_size": 4}
    )
    found = setting_on_paper(config)
    stages = found.own_stages
    assert stages.num_at_end(is_first=True) == num_first
    assert stages.num_at_end(is_first=False) + stages.num_tied == num_last
