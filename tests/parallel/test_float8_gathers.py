"""Weights gathered in fp8: bytes, losses and weights as if rounded after a gather in bf16, in half the messages."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from lmtrain.accounting.training_plan.setting import Setting
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.llama import Llama
from lmtrain.optim.parameter_groups import trained_parameters
from lmtrain.parallel.float8_gathers import Float8Weight
from lmtrain.parallel.gradients import whole_tensor
from lmtrain.parallel.mesh import mesh, mesh_facts
from lmtrain.precision.float8 import fp8_facts
from tests.parallel.halves import in_fp8
from tests.parallel.strategy_parity import Found, trained
from tests.ranks import on_ranks

pytest.importorskip("torchao")

SHAPE: dict[str, Any] = {
    "width": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "feed_forward_width": 96, "vocab_size": 301,
}  # fmt: skip
STEPS, MICRO_STEPS = 5, 2
FSDP: dict[str, Any] = {
    "model": "wide", "optimizer": "adamw", "loss": "plain", "strategy": "fsdp", "compute_dtype": "bfloat16",
    "micro_batch_sequences": 2, "steps": STEPS,
}  # fmt: skip
ON_FOUR: list[dict[str, Any]] = [
    {"strategy": "hsdp", "settings": {"shard_size": 2, "reduce_every_micro_step": True}, "micro_batch_sequences": 1},
    {"strategy": "fsdp_tensor", "settings": {"tensor_size": 2}, "recompute": True, "compile": "captured"},
]
ON_TWO: list[dict[str, Any]] = [
    {"notes_messages": True},
    {"settings": {"reshard_after_forward": False}, "recompute": "selective", "optimizer": "muon"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoints."""
    return tmp_path_factory.mktemp("gathers")


def in_both(folder: Path, cases: list[dict[str, Any]], *, num_ranks: int) -> list[tuple[Found, Found]]:
    """Train each case with weights gathered in fp8 and in bf16; the first of them saves its second step."""
    asked = [
        {**FSDP, **case, "precision": name, "save_to": f"{name}{number}{num_ranks}", "save_at": 2}
        for number, case in enumerate(cases)
        for name in ("fp8 gathered", "fp8")
    ]
    found = trained(folder, asked, num_ranks=num_ranks)
    return list(zip(found[::2], found[1::2], strict=True))


@pytest.fixture(scope="module")
def on_two(folder: Path) -> list[tuple[Found, Found]]:
    """All cases on two ranks, with two micro-steps a step."""
    return in_both(folder, ON_TWO, num_ranks=2)


def require_equal(found: Found, expected: Found) -> None:
    """Compare every number of two trainings to the last bit."""
    assert len(found["losses"]) == STEPS
    for kind in ("losses", "norms", "tokens"):
        assert found[kind] == expected[kind], kind
    for kind in ("gradients", "weights"):
        for name, tensor in expected[kind].items():
            assert torch.equal(found[kind][name], tensor), f"{kind} of {name}"


@pytest.mark.distributed
@pytest.mark.parametrize("case", range(len(ON_TWO)))
def test_training_is_equal_to_the_last_bit(on_two: list[tuple[Found, Found]], case: int) -> None:
    require_equal(*on_two[case])


@pytest.mark.distributed
def test_training_in_copies_and_in_compiled_recomputed_tensor_groups_is_equal_to_the_last_bit(folder: Path) -> None:
    for pair in in_both(folder, ON_FOUR, num_ranks=4):
        require_equal(*pair)


@pytest.mark.distributed
def test_a_step_sends_the_planned_bytes_and_one_message_of_scales(on_two: list[tuple[Found, Found]]) -> None:
    """The second gather of the weights outside the blocks is counted by the plan and not sent."""
    with torch.device("meta"):
        parameters = trained_parameters(Llama(**SHAPE, max_context_tokens=16))
    spread, num_layers = mesh_facts(option="fsdp"), 4 * SHAPE["num_layers"]
    for found, gather in zip(on_two[0], ("fp8", "bf16"), strict=True):
        facts: Any = SimpleNamespace(precision=fp8_facts(gather=gather, min_width=16), bytes_of=fp8_facts().bytes_of)
        gathered = Setting.gathered_bytes(facts, parameters, parameters.num_total)
        step = {"num_gradients": parameters.num_total, "micro_steps": MICRO_STEPS}
        (shards,) = spread.collectives(num_ranks=2, gathered=gathered, **step)
        counted_twice = MICRO_STEPS * 2 * parameters.num_outside_blocks / 2
        for messages in found["sent"][1:]:  # the first one also gathers gradients to compare
            sent = sum(each.sent for each in messages if each.kind == "gather")
            assert sent == pytest.approx(shards.gathered_bytes - counted_twice, rel=0.003)  # a row of 301 is padded
            scales = [each.num_bytes for each in messages if each.kind == "reduce" and each.num_bytes == 4 * num_layers]
            assert len(scales) == (gather == "fp8")
        in_fp8_or_not = [each.num_bytes for each in found["sent"][1] if each.kind == "gather"][1]
        num_wide = parameters.num_wide(16) // SHAPE["num_layers"]
        saved = num_wide if gather == "fp8" else 0
        assert in_fp8_or_not == (2 * parameters.num_largest_block - saved) / 2


@pytest.mark.distributed
def test_a_checkpoint_continues_in_one_process_in_fp32_and_in_ddp(
    folder: Path, on_two: list[tuple[Found, Found]]
) -> None:
    assert on_two
    plain = {name: FSDP[name] for name in ("model", "optimizer", "loss")} | {"micro_batch_sequences": 4, "steps": 4}
    for strategy, num_ranks in (("single", 1), ("ddp", 2)):
        cases = [{**plain, "strategy": strategy, "resume": f"{name}02"} for name in ("fp8 gathered", "fp8")]
        of_gathered, expected = trained(folder, cases, num_ranks=num_ranks)
        assert list(of_gathered["losses"]) == [3, 4]
        assert of_gathered["losses"] == expected["losses"]
        assert {tensor.dtype for tensor in of_gathered["weights"].values()} == {torch.float32}
        assert list(of_gathered["weights"]) == list(expected["weights"])


@pytest.mark.distributed
@pytest.mark.parametrize("num_ranks", [2, 3])  # three do not divide the rows
def test_the_gathered_bytes_are_torchao_s_and_evaluation_has_bf16(tmp_path: Path, num_ranks: int) -> None:
    on_ranks(_gathers_alike, folder=tmp_path, num_ranks=num_ranks)


def _gathers_alike(rank: int) -> None:
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
    from torchao.float8.float8_training_tensor import GemmInputRole, LinearMMConfig

    del rank
    num_ranks = torch.distributed.get_world_size()
    model = Llama(**SHAPE, max_context_tokens=16)
    model.initialize_weights(torch.Generator().manual_seed(0))
    torch.nn.init.zeros_(model.get_parameter("layers.0.self_attention.output.weight"))
    device_mesh = init_device_mesh("cpu", (num_ranks, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    fsdp = mesh(option="fsdp", num_ranks=num_ranks, compute_dtype=torch.bfloat16)
    sharded = fsdp.parallelize(in_fp8(model, gather="fp8"), device_mesh)
    layers: dict[str, Any] = {name: layer for name, layer in sharded.named_modules() if hasattr(layer, "float8_weight")}
    assert len(layers) == 8
    seen: dict[str, Any] = {}

    def note(name: str) -> Any:
        def look(layer: Any, _: Any) -> None:
            weight = layer.weight
            seen[name] = [
                one.clone() for one in ((weight._data, weight._scale) if hasattr(weight, "_data") else (weight,))
            ]

        return look

    for name, layer in layers.items():
        layer.register_forward_pre_hook(note(name))
    tokens = torch.randint(301, (1, 16), generator=torch.Generator().manual_seed(1))
    total: list[float] = []
    for factor in (1.0, 3.0):  # the second time with other masters, after a step without gradients
        for layer in layers.values():
            with torch.no_grad():
                layer.weight.mul_(factor)
        masters = {name: whole_tensor(layer.weight.detach()).clone() for name, layer in layers.items()}
        with torch.no_grad():
            total.append(sharded(tokens, tokens, CrossEntropy()).objective.item())
        for name, master in masters.items():
            assert torch.equal(seen[name][0], master.bfloat16()), f"{name} in evaluation"
        result = sharded(tokens, tokens, CrossEntropy()).objective
        for name, master in masters.items():
            expected = hp_tensor_to_float8_dynamic(
                master.bfloat16(), torch.float8_e4m3fn, LinearMMConfig(), gemm_input_role=GemmInputRole.WEIGHT
            )
            data, scale = seen[name]
            assert torch.equal(data.view(torch.uint8), expected._data.view(torch.uint8)), name
            assert torch.equal(scale, expected._scale), name
        result.backward()
        assert result.item() != total[-1], "evaluation is not rounded"
    assert total[0] != total[1]


def test_a_shard_on_a_gpu_is_rounded_there() -> None:
    with torch._subclasses.FakeTensorMode():
        shard = torch.empty(48, device="cuda")
        record = SimpleNamespace(_sharded_param_data=shard)
        (data,), _ = Float8Weight(record, torch.ones((), device="cuda"), torch.bfloat16)._before(None)
    assert (data.dtype, data.device.type, data.shape) == (torch.uint8, "cuda", (48,))
