"""The bytes that a strategy's real shards hold on a fake group of ranks are the planned ones, for every model."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from lmtrain.accounting.training_plan.setting import memory_of, moments_of
from lmtrain.cli.commands.plan import plan_json
from lmtrain.cli.commands.simulate import simulate
from lmtrain.models.base import LanguageModel
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.parallel.context_slices import slice_sequences
from lmtrain.parallel.tensor_layers import Regions
from lmtrain.parallel.tensor_parallel import cut_model
from lmtrain.run.builders.model import build_strategy
from lmtrain.run.planning.choices import setting_on_paper
from lmtrain.run.planning.known_models import TABLE
from tests.configs import config_of

# The models of the shipped table, and one of each further kind of block.
KINDS = ("gemma_2_2b", "olmo_2_1b", "glm_4_9b", "gpt_oss_20b", "deepseek_v2_lite", "lfm2_350m", "qwen_3_30b_a3b")
MODELS = [
    *sorted({name.partition("@")[0] for name in json.loads(TABLE.read_text())["models"]}),
    *(pytest.param(name, marks=pytest.mark.slow) for name in KINDS),  # each is measured first
]
SMALL = ("llama_tiny", "llama_3_2_1b", "gpt2_124m", "mixtral_tiny")
WORDS = ("cluster=h100_8x", "optimizer=adamw", "precision=bf16_mixed", "batch.context_tokens=256", "compile=blocks")


@contextmanager
def fake_mesh(num_ranks: int) -> Generator[DeviceMesh]:
    """Be rank 0 of `num_ranks`, with messages to nobody."""
    dist.init_process_group("fake", rank=0, world_size=num_ranks)
    try:
        yield init_device_mesh("cpu", (num_ranks, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    finally:
        dist.destroy_process_group()


def held_and_planned(
    model: str, strategy: str, num_nodes: int, *words: str, of_rank_0: bool = False
) -> tuple[int, int]:
    """Return the bytes of rank 0's weights in the strategy's shards, and those of the plan for the fullest rank."""
    num_ranks = 8 * num_nodes
    step = f"batch.tokens_per_step={num_ranks * 256}"
    config = config_of(f"model={model}", f"strategy={strategy}", f"cluster.num_nodes={num_nodes}", step, *WORDS, *words)
    parallelism = build_strategy(config, facts={"num_ranks": num_ranks, "compute_dtype": torch.bfloat16})
    with torch.device("meta"):
        whole: LanguageModel = config.model.build()
    with fake_mesh(num_ranks) as mesh:
        cut = parallelism.parallelize(whole, mesh)
        local = [one.to_local() if isinstance(one, DTensor) else one for one in cut.parameters()]
        held = sum(one.numel() * 4 for one in local)
    setting, batch = setting_on_paper(config), config.divided(config.batch)
    return held, (moments_of(setting, batch)[0] if of_rank_0 else memory_of(setting, batch)).weights


@pytest.mark.parametrize("model", MODELS)
def test_every_model_over_sixteen_ranks(model: str) -> None:
    held, planned = held_and_planned(model, "fsdp", 2)
    assert held == planned


OF_A_NODE = {
    "context": "strategy.context_size=2",
    "tensor": "strategy.tensor_size=4",
    "fsdp_tensor": "strategy.tensor_size=4",
}
CUT_KINDS = ("deepseek_v2_lite", "gpt_oss_20b", "olmo_2_1b")
CASES = [
    *(pytest.param(model, "fsdp_tensor", marks=pytest.mark.slow) for model in CUT_KINDS),
    *((model, strategy) for model in SMALL for strategy in ("ddp", "hsdp", "context")),
    *(
        (model, strategy)
        for model in ("llama_3_2_1b", "qwen_3_4b", "gpt2_124m", "mixtral_8x7b", "olmoe_1b_7b")
        for strategy in ("tensor", "fsdp_tensor")
    ),
]


@pytest.mark.parametrize(("model", "strategy"), CASES)
def test_every_strategy(model: str, strategy: str) -> None:
    held, planned = held_and_planned(model, strategy, 2, *([OF_A_NODE[strategy]] if strategy in OF_A_NODE else []))
    assert held == planned


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
@pytest.mark.parametrize("model", ["llama_3_2_1b", "gpt2_124m", "mixtral_tiny"])
def test_the_first_stage_of_a_pipeline(model: str, schedule: str) -> None:
    """To a thousandth: zbv has the last norm there too."""
    words = ["strategy.pipeline_size=2", f"strategy.schedule={schedule}", "batch.micro_batch_sequences=1"]
    words += ["strategy.num_chunks=2", "compile=none"] if schedule == "zbv" else []
    held, planned = held_and_planned(model, "pipeline", 1, *words, of_rank_0=True)
    assert held == pytest.approx(planned, rel=1e-3)


@pytest.mark.parametrize(("model", "num_nodes"), [("mixtral_8x7b", 8), ("mixtral_tiny", 8), ("olmoe_1b_7b", 16)])
def test_more_ranks_than_experts(model: str, num_nodes: int) -> None:
    held, planned = held_and_planned(model, "fsdp", num_nodes)
    assert held == planned
    alone, _ = held_and_planned(model, "ddp", 1)
    assert held < 1.01 * alone / (8 * num_nodes)


@pytest.mark.parametrize(("model", "expert_size"), [("mixtral_8x7b", 8), ("mixtral_tiny", 2), ("olmoe_1b_7b", 16)])
def test_experts_shared_out(model: str, expert_size: int) -> None:
    """Held as by fsdp; gathered are two blocks with a rank's own experts, and the rest, in bf16."""
    words = f"strategy.expert_size={expert_size}"
    held, planned = held_and_planned(model, "fsdp", 2, words)
    assert held == planned
    step = "batch.tokens_per_step=4096"
    config = config_of(f"model={model}", "strategy=fsdp", words, "cluster.num_nodes=2", step, *WORDS)
    with torch.device("meta"):
        whole: LanguageModel = config.model.build()
    block = sum(one.numel() // (expert_size if one.ndim == 3 else 1) for one in whole.blocks[0].parameters())
    outside = sum(one.numel() for one in whole.parameters()) - len(whole.blocks) * sum(
        one.numel() for one in whole.blocks[0].parameters()
    )
    forward, *_ = moments_of(setting_on_paper(config), config.divided(config.batch))
    assert forward.gathered == 2 * (outside + 2 * block)


@pytest.mark.parametrize(("model", "other"), [("mixtral_8x7b", "expert_size=4"), ("llama_3_2_1b", "context_size=2")])
def test_tensor_groups_with_groups_of_another_kind(model: str, other: str) -> None:
    held, planned = held_and_planned(model, "mesh", 2, "strategy.tensor_size=2", f"strategy.{other}")
    assert held == planned


def kept_by(model: LanguageModel) -> int:
    """Return the bytes that a forward pass over two sequences keeps, without the parameters'."""
    own = [one.to_local() if isinstance(one, DTensor) else one for one in model.parameters()]
    known = {one.untyped_storage().data_ptr() for one in own}
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):
        hidden, _ = model.features(torch.zeros(2, 64, dtype=torch.int64))
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in [hidden, *kept]}
    return sum(size for place, size in storages.items() if place not in known)


@pytest.mark.parametrize("experts", [None, Experts(num_experts=4, num_experts_per_token=3)])
def test_activations_of_a_tensor_group(experts: Experts | None) -> None:
    """To 10%: routing, rotations and norms' sums are small and not cut as planned."""
    sizes = {"width": 64, "num_layers": 4, "num_heads": 4, "feed_forward_width": 128, "vocab_size": 8}
    model = Llama(**sizes, max_context_tokens=64, experts=experts)
    model.initialize_weights(torch.Generator().manual_seed(0))
    alone, num_ranks = kept_by(model), 4
    gathered = 64 * 4 * model.shape().layer_vectors * sizes["num_layers"] * 2 * 64
    with fake_mesh(num_ranks) as mesh:
        cut_model(model, Regions(mesh["data_parallel"]))
        assert kept_by(model) == pytest.approx((alone + (num_ranks - 1) * gathered) / num_ranks, rel=0.1)


def test_activations_of_a_context_group_with_one_head_of_keys() -> None:
    """To 10%, as above: each rank keeps the keys and values of all tokens next to its slice."""
    sizes = {"width": 64, "num_layers": 4, "num_heads": 4, "num_kv_heads": 1, "feed_forward_width": 128}
    model = Llama(**sizes, vocab_size=8, max_context_tokens=64)
    model.initialize_weights(torch.Generator().manual_seed(0))
    alone, num_ranks = kept_by(model), 4
    keys = 4 * 2 * 64 * 2 * 16 * 4
    with fake_mesh(num_ranks) as mesh:
        slice_sequences(model, mesh["data_parallel"])
        assert kept_by(model) == pytest.approx((alone + (num_ranks - 1) * keys) / num_ranks, rel=0.1)


def test_activations_of_a_tensor_group_with_a_slice_of_the_sequence() -> None:
    """To 10%, as above."""
    sizes = {"width": 64, "num_layers": 4, "num_heads": 4, "feed_forward_width": 128, "vocab_size": 8}
    model = Llama(**sizes, max_context_tokens=64)
    model.initialize_weights(torch.Generator().manual_seed(0))
    alone, size = kept_by(model), 2
    gathered = 64 * 4 * model.shape().layer_vectors * sizes["num_layers"] * 2 * 64 / size
    with fake_mesh(size**2):
        grid = init_device_mesh("cpu", (size, size), mesh_dim_names=("context", "tensor"))
        cut_model(model, Regions(grid["tensor"]))
        slice_sequences(model, grid["context"])
        assert kept_by(model) == pytest.approx((alone / size + (size - 1) * gathered) / size, rel=0.1)


def test_the_simulation_is_that_of_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=mixtral_8x7b", "strategy=fsdp", "recompute=every_block", *WORDS, "cluster.num_nodes=8"]
    words += ["batch.tokens_per_step=131072", f"run.cache={tmp_path}"]
    simulate([*words, "--json"])
    drawn = json.loads(capsys.readouterr().out)
    (planned,) = plan_json([*words, "budget=tokens", "budget.tokens=1B"])
    assert drawn["memory"]["peak_bytes"] == planned["memory"]["per_device_bytes"]["total"]
    assert drawn["step_seconds"] == planned["time"]["step_seconds"]
    assert drawn["mfu"] == planned["time"]["mfu_palm"]
    sent = sum(each["bytes"] for each in drawn["collectives"])
    assert sent == pytest.approx(planned["communication"]["bytes_per_step"])
