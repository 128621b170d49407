"""Each further kind of layer on two ranks, held to a single process: sharded by FSDP, and cut over a tensor group."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lmtrain.accounting.options.strategy import Stream
from lmtrain.optim.parameter_groups import trained_parameters
from lmtrain.parallel.mesh import mesh_facts
from tests.parallel.parity_run import CONTEXT_TOKENS, MODELS, VOCAB_SIZE
from tests.parallel.strategy_parity import CLIP, Found, require_same, require_same_end, trained

KINDS = ("latent", "sinks", "delta", "convolution", "after", "capped")
STEP = {"optimizer": "adamw", "loss": "plain", "micro_batch_sequences": 4}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """Each in one process, in a micro-batch of eight sequences: experts are balanced within one of all ranks."""
    cases = [STEP | {"model": kind, "strategy": "single", "micro_batch_sequences": 8} for kind in KINDS]
    return dict(zip(KINDS, trained(tmp_path_factory.mktemp("alone"), cases), strict=True))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """Each over two ranks of FSDP, a micro-batch of four sequences each."""
    cases = [STEP | {"model": kind, "strategy": "fsdp", "recompute": kind == "sinks"} for kind in KINDS]
    return dict(zip(KINDS, trained(tmp_path_factory.mktemp("fsdp"), cases, num_ranks=2), strict=True))


@pytest.mark.distributed
@pytest.mark.parametrize("kind", KINDS)
def test_fsdp_trains_as_one_process(alone: dict[str, Found], sharded: dict[str, Found], kind: str) -> None:
    require_same(sharded[kind], alone[kind])
    assert min(alone[kind]["norms"].values()) > CLIP, "every step is clipped"


CUT: list[dict[str, Any]] = [
    {"model": "latent", "notes_messages": True},
    {"model": "latent", "recompute": True, "compile": "captured", "optimizer": "muon"},
    {"model": "sinks", "recompute": True, "optimizer": "muon"},
    {"model": "capped", "loss": "chunked"},
    {"model": "after"},
    {"model": "olmoe", "recompute": True},
    {"model": "delta", "recompute": True, "optimizer": "muon"},
    {"model": "mamba"},
    {"model": "convolution", "recompute": True},
    {"model": "future", "recompute": True, "adapts": True},
    {"model": "gpt2", "adapts": True, "loss": "chunked"},
    {"model": "nano", "adapts": True, "recompute": True, "compile": "captured"},
    {"model": "future", "notes_messages": True},
]
PAIR = STEP | {"strategy": "tensor", "settings": {"tensor_size": 2}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoints."""
    return tmp_path_factory.mktemp("tensor")


@pytest.fixture(scope="module")
def whole(folder: Path) -> list[Found]:
    """Those that can be cut, in one process; the first saves after its first step."""
    plain: list[dict[str, Any]] = [
        STEP | case | {"strategy": "single", "compile": "none", "recompute": False} for case in CUT
    ]
    return trained(folder, [plain[0] | {"save_to": "whole"}, *plain[1:]])


@pytest.fixture(scope="module")
def pair(folder: Path, whole: list[Found]) -> list[Found]:
    """Those on a group of two ranks; the first and third again, from checkpoints of one process and of the pair."""
    assert whole
    cases = [PAIR | case for case in CUT]
    saving = [*cases[:2], cases[2] | {"save_to": "pair"}, *cases[3:]]
    return trained(folder, [*saving, cases[0] | {"resume": "whole"}, cases[2] | {"resume": "pair"}], num_ranks=2)


@pytest.mark.distributed
@pytest.mark.parametrize("case", range(len(CUT)))
def test_a_tensor_group_trains_as_one_process(pair: list[Found], whole: list[Found], case: int) -> None:
    require_same(pair[case], whole[case])
    if not CUT[case].get("adapts"):
        assert min(whole[case]["norms"].values()) > CLIP, "every step is clipped"


@pytest.mark.distributed
def test_a_group_goes_on_from_one_process_and_from_itself(pair: list[Found], whole: list[Found]) -> None:
    require_same_end(pair[-2], whole[0])
    assert pair[-1]["losses"] == {step: pair[2]["losses"][step] for step in (2, 3)}
    for name, weight in pair[2]["weights"].items():
        assert torch.equal(pair[-1]["weights"][name], weight), name


@pytest.mark.distributed
def test_adapters_go_on_from_any_layout(tmp_path: Path) -> None:
    """To 2e-5: gradients of one process's adapters of latent vectors, summed by two ranks, differ by 7e-6."""
    case = STEP | {"model": "latent", "adapts": True, "micro_batch_sequences": 8}
    start = case | {"strategy": "single"}
    (alone,) = trained(tmp_path, [start | {"save_to": "alone"}])
    group, together = PAIR | case | {"save_to": "together"}, PAIR | case | {"resume": "alone"}
    first, resumed = trained(tmp_path, [group, together], num_ranks=2)
    require_same(first, alone, relative=2e-5)
    grid = case | {"strategy": "fsdp_tensor", "settings": {"tensor_size": 2}}
    grid |= {"micro_batch_sequences": 4, "resume": "together"}
    (of_four,) = trained(tmp_path, [grid], num_ranks=4)
    (back,) = trained(tmp_path, [start | {"resume": "together"}])
    for found in (resumed, of_four, back):
        require_same_end(found, alone)


@pytest.mark.distributed
def test_a_step_with_future_tokens_sends_what_its_facts_say(pair: list[Found]) -> None:
    stream = Stream(num_tokens=64, num_bytes=64 * 16 * 4, num_layers=4, num_future_tokens=2)
    facts = {"gathered": 0.0, "num_gradients": 0.0, "micro_steps": 2}
    (group,) = mesh_facts(option="tensor", tensor_size=2).collectives(num_ranks=2, stream=stream, **facts)
    *messages, _, _, _ = pair[len(CUT) - 1]["sent"][-1]
    assert sum(each.sent for each in messages) == group.gathered_bytes


@pytest.mark.distributed
def test_a_step_sends_what_its_facts_say(pair: list[Found]) -> None:
    """And the step's loss, tokens and FLOPs, its norm, and the counts of experts' tokens."""
    model = MODELS["latent"](vocab_size=VOCAB_SIZE, max_context_tokens=CONTEXT_TOKENS)
    stream = Stream(num_tokens=64, num_bytes=64 * 16 * 4, num_layers=3)
    whole = trained_parameters(model).num_whole_in_groups
    (group,) = mesh_facts(option="tensor", tensor_size=2).collectives(
        num_ranks=2, stream=stream, num_summed=whole, gathered=0.0, num_gradients=0.0, micro_steps=2
    )
    *messages, of_parts, of_loss, of_norm, of_counts = pair[0]["sent"][-1]
    assert sum(each.sent for each in messages) == group.gathered_bytes
    assert of_parts.sent == group.reduced_bytes
    assert (of_loss.num_bytes, of_norm.num_bytes, of_counts.num_bytes) == (24, 4, 2 * 8 * 4)
