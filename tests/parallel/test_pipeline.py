"""Stages of a pipeline on two ranks, and two such pipelines, held to a single process and resumed elsewhere.

One process takes the same micro-batches: the penalties of routers are of each by itself.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from lmtrain.accounting.batches import Batch, BatchPlan, plan_batches
from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.model.memory import Pipeline
from lmtrain.accounting.training_plan.setting import Setting
from lmtrain.accounting.training_plan.speed import sent_in_step
from lmtrain.accounting.training_plan.step_time import PlannedModel
from lmtrain.errors import ConfigurationError
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.llama import Llama
from lmtrain.optim.parameter_groups import trained_parameters
from lmtrain.parallel.mesh import mesh_facts
from lmtrain.parallel.pipeline_parts import cut_layers, holders, require_staged
from lmtrain.parallel.pipeline_run import PipelineRun
from tests import facts
from tests.parallel.parity_run import CONTEXT_TOKENS, MODELS, VOCAB_SIZE
from tests.parallel.strategy_parity import CLIP, Found, require_same, require_same_end, trained
from tests.ranks import on_ranks

TWO: dict[str, Any] = {"pipeline_size": 2}
FOUR: dict[str, Any] = {"pipeline_size": 2, "num_chunks": 2}
CASES: list[dict[str, Any]] = [
    {"model": "llama", "optimizer": "muon", "loss": "plain", "settings": TWO, "recompute": True},
    {"model": "qwen", "optimizer": "adamw", "loss": "chunked", "settings": TWO},  # tied
    {"model": "gpt2", "optimizer": "adamw", "loss": "plain", "settings": TWO | {"schedule": "gpipe"}},  # tied
    {"model": "nano", "optimizer": "muon", "loss": "chunked", "settings": TWO},
    {"model": "latent", "optimizer": "adamw", "loss": "chunked", "settings": TWO},  # experts
    {"model": "mamba", "optimizer": "adamw", "loss": "chunked", "settings": FOUR},
    {
        "model": "mamba",
        "optimizer": "muon",
        "loss": "chunked",
        "settings": FOUR | {"schedule": "zero_bubble"},
    },
    {"model": "delta", "optimizer": "adamw", "loss": "plain", "settings": FOUR | {"schedule": "zbv"}},  # experts
]
MICRO = {"micro_batch_sequences": 2}
STAGES: dict[str, Any] = {"strategy": "pipeline", **MICRO, "notes_messages": True}
ALONE = {"strategy": "single", **MICRO}


def alone_of(case: dict[str, Any]) -> dict[str, Any]:
    return ALONE | {name: value for name, value in case.items() if name not in ("settings", "recompute")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoints."""
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[Found]:
    """All trainings in one process; the tied one and the one with experts save their first step."""
    cases = [alone_of(case) for case in CASES]
    cases[1] |= {"save_to": "whole"}
    cases[4] |= {"save_to": "whole_experts"}
    return trained(folder, cases)


@pytest.fixture(scope="module")
def staged(folder: Path, alone: list[Found]) -> list[Found]:
    """All on two stages; then from the first's and from one process's checkpoints of a first step."""
    assert alone
    cases = [STAGES | case for case in CASES]
    again = [
        cases[0] | {"resume": "stages"},
        cases[4] | {"resume": "whole_experts"},  # with the biases of a choice, which are buffers
        cases[1] | {"resume": "whole", "settings": TWO | {"schedule": "gpipe"}},
    ]
    return trained(folder, [cases[0] | {"save_to": "stages"}, *cases[1:], *again], num_ranks=2)


@pytest.mark.distributed
@pytest.mark.parametrize("case", range(len(CASES)))
def test_losses_gradients_and_weights_are_those_of_one_process(
    staged: list[Found], alone: list[Found], case: int
) -> None:
    require_same(staged[case], alone[case])
    assert min(alone[case]["norms"].values()) > CLIP, "every step is clipped"


def planned_bytes(case: dict[str, Any], *, num_ranks: int) -> dict[str, float]:
    """Return the bytes that a rank of the case sends in a step, by group."""
    with torch.device("meta"):
        model = MODELS[case["model"]](vocab_size=VOCAB_SIZE, max_context_tokens=CONTEXT_TOKENS)
    spread = mesh_facts(option="pipeline", **case["settings"])
    sequences = case.get("micro_batch_sequences", MICRO["micro_batch_sequences"])
    asked = Batch(context_tokens=16, tokens_per_step=128, micro_batch_sequences=sequences)
    batch = plan_batches(asked, num_ranks=num_ranks, num_stages=2)
    precision, state = facts.precision("fp32"), facts.optimizer("adamw").state
    setting = Setting(cluster=Cluster(name="x"), num_ranks=num_ranks, precision=precision, state=state, spread=spread)
    shape = model.shape()
    planned = PlannedModel(shape=shape, parameters=trained_parameters(model), flops=flops_per_token(shape, 16))
    return {each.group: each.num_bytes for each in sent_in_step(setting, batch, planned).groups}


@pytest.mark.distributed
@pytest.mark.parametrize("case", range(len(CASES)))
def test_stages_send_the_planned_bytes(staged: list[Found], case: int) -> None:
    for messages in staged[case]["sent"][1:]:
        sent = sum(each.sent for each in messages if each.kind == "send")
        assert planned_bytes(CASES[case], num_ranks=2) == {"stages": sent}


@pytest.mark.distributed
def test_stages_have_the_planned_room_for_what_they_receive(tmp_path: Path) -> None:
    on_ranks(_received, folder=tmp_path)


def _received(rank: int) -> None:
    for settings, num_micro_steps in ((TWO, 3), (FOUR, 4), (FOUR | {"schedule": "zbv"}, 4)):
        model, pipeline = (
            MODELS["delta"](vocab_size=VOCAB_SIZE, max_context_tokens=8),
            mesh_facts(option="pipeline", **settings).pipeline,
        )
        model.initialize_weights(torch.Generator().manual_seed(0))
        grid = init_device_mesh("cpu", (1, 2), mesh_dim_names=("copies", "stages"))
        layers = cut_layers(model, num_parts=pipeline.num_parts)
        run = PipelineRun(model, grid["stages"].get_group(), pipeline, layers=layers, context=nullcontext)
        run.connect(grid["copies"].get_group(), num_slices=1)
        ids = torch.zeros(1, 8, dtype=torch.int64)
        run.run([(ids, ids, None)] * num_micro_steps, CrossEntropy(), scale=1.0)
        assert run._schedule is not None
        schedule = run._schedule[1]
        stages = getattr(schedule, "_stages", None) or [schedule._stage]
        rooms = [room for stage in stages for room in (stage.args_recv_info, stage.grad_recv_info)]
        infos = [info for room in rooms for of_micro in room.values() for info in of_micro]
        held = sum(info.buffer.nbytes for info in infos if info.buffer is not None)
        assert held == num_micro_steps * pipeline.num_received(stage=rank) * (8 * 16 * 4 + 4)  # the stream, a penalty


@pytest.mark.distributed
def test_a_resumed_pipeline_goes_on_to_the_last_bit(staged: list[Found]) -> None:
    straight, resumed = staged[0], staged[-3]
    assert resumed["losses"] == {step: straight["losses"][step] for step in (2, 3)}
    for name, weight in straight["weights"].items():
        assert torch.equal(resumed["weights"][name], weight), name


@pytest.mark.distributed
def test_stages_go_on_from_one_process_and_one_process_from_stages(
    folder: Path, staged: list[Found], alone: list[Found]
) -> None:
    require_same_end(staged[-1], alone[1])
    require_same_end(staged[-2], alone[4])
    (single,) = trained(folder, [alone_of(CASES[0]) | {"resume": "stages"}])
    require_same_end(single, alone[0])


@pytest.mark.distributed
@pytest.mark.slow
def test_two_pipelines_with_rows_of_their_own_train_as_one_process(folder: Path, alone: list[Found]) -> None:
    experts = CASES[4] | {
        "micro_batch_sequences": 4,
        "settings": TWO | {"schedule": "gpipe"},
    }  # balanced by the tokens of both
    one_stage = CASES[1] | {"settings": {"pipeline_size": 1}}
    cases = [*(STAGES | case for case in (CASES[0], CASES[1], one_stage)), STAGES | experts]
    found = trained(folder, cases, num_ranks=4)
    (balanced,) = trained(folder, [alone_of(experts) | {"micro_batch_sequences": 8}])
    for one, expected in zip(found, (alone[0], alone[1], alone[1], balanced), strict=True):
        require_same(one, expected)


def llama(**settings: Any) -> Llama:
    sizes = {"width": 8, "num_layers": 6, "num_heads": 2, "feed_forward_width": 16, "vocab_size": 16}
    with torch.device("meta"):
        return Llama(**{**sizes, "max_context_tokens": 8, **settings})


def test_layers_are_cut_by_their_time_and_the_head_counts() -> None:
    assert cut_layers(llama(), num_parts=3) == [range(2), range(2, 4), range(4, 6)]
    # A head of 8 x 220 numbers is as long as some 2.6 layers.
    assert cut_layers(llama(vocab_size=220), num_parts=2) == [range(4), range(4, 6)]


def test_every_parameter_is_in_one_part_and_a_tied_table_in_two() -> None:
    model = llama(tie_embeddings=True, value_embedding_layers=(1, 5))
    found = holders(model, cut_layers(model, num_parts=3))
    shared = {name: parts for name, parts in found.items() if len(parts) > 1 and not name.startswith("rope.")}
    assert shared == {"embedding.token.weight": {0, 2}}
    assert found["value_embeddings.1.weight"] == {0}
    assert found["value_embeddings.5.weight"] == found["final_norm.weight"] == {2}


@pytest.mark.parametrize(
    ("settings", "pipeline", "message"),
    [
        ({}, {"num_stages": 8}, r"more parts than the model's 6 layers\. Did you mean strategy\.pipeline_size=4"),
        ({"num_future_tokens": 1}, {"num_stages": 2}, r"model\.num_future_tokens: must be 0"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_with_what_can(
    settings: dict[str, Any], pipeline: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        require_staged(llama(**settings), pipeline=Pipeline(**pipeline))


@pytest.mark.parametrize(
    ("pipeline", "num_micro_steps", "message"),
    [
        ({"num_stages": 4}, 3, r"at least strategy\.pipeline_size=4.*got 9, which gives 3\. Did you mean 3\?"),
        ({"num_stages": 2, "num_chunks": 2}, 27, r"in rounds of.*got 1, which gives 27\. Did you mean 9\?"),
        ({"num_stages": 32}, 9, r"Did you mean strategy\.schedule=gpipe\?"),
    ],
)
def test_micro_steps_that_a_schedule_cannot_lay_out_are_refused(
    pipeline: dict[str, Any], num_micro_steps: int, message: str
) -> None:
    batch = BatchPlan(
        context_tokens=8,
        sequences_per_micro_step=27 // num_micro_steps,
        accumulation_micro_steps=num_micro_steps,
        num_ranks=pipeline["num_stages"],
        num_stages=pipeline["num_stages"],
    )
    with pytest.raises(ConfigurationError, match=message):
        Pipeline(**pipeline).require_micro_steps(batch)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "zbv"}, r"strategy\.num_chunks: must be 2 .*got 1\. Did you mean 2\?"),
        ({"schedule": "gpipe", "num_chunks": 2}, r"strategy\.num_chunks: must be 1 .*got 2\. Did you mean 1\?"),
        ({"schedule": "interleaved"}, r"must be 2 or more"),
    ],
)
def test_chunks_that_a_schedule_does_not_have_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Pipeline(num_stages=4, **settings)
