"""Two ranks that compute each product together, and two such pairs, held to a single process and resumed elsewhere."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lmtrain.accounting.options.strategy import Stream
from lmtrain.errors import ConfigurationError
from lmtrain.parallel.tensor import tensor, tensor_facts
from tests.parallel.strategy_parity import CLIP, Found, require_same, require_same_end, trained

CASES = [
    {"model": "llama", "optimizer": "muon", "loss": "plain"},
    {"model": "gpt2", "optimizer": "adamw", "loss": "chunked", "recompute": True},
    {"model": "qwen", "optimizer": "adamw", "loss": "plain"},
    {"model": "nano", "optimizer": "muon", "loss": "chunked", "recompute": True},
    {"model": "wide", "optimizer": "adamw", "loss": "plain", "recompute": True, "compile": "captured"},
]
# One micro-batch, without a gradient so near the border of two fp8 numbers that 1e-7 decides between them: two
# micro-batches have one, and the 2% of a row by which it moves grow from layer to layer.
CASES.append(CASES[-1] | {"precision": "fp8", "micro_batch_sequences": 8})
ALONE = {"strategy": "single", "micro_batch_sequences": 8}
PAIR = {"strategy": "tensor", "settings": {"tensor_size": 2}, "micro_batch_sequences": 4}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """All trainings in one process, a whole step at once."""
    folder = tmp_path_factory.mktemp("alone")
    plain: list[dict[str, Any]] = [case | {"compile": "none", "recompute": False} for case in CASES]
    plain[-1] |= {"precision": "fp8 in halves"}  # a scale for each rank's part
    return trained(folder, [ALONE | case for case in plain])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoints."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def pair(folder: Path) -> list[Found]:
    """All on a group of two ranks, with two micro-steps a step; the first again, from its first step on."""
    cases = [PAIR | case for case in CASES]
    return trained(folder, [cases[0] | {"save_to": "pair"}, *cases[1:], cases[0] | {"resume": "pair"}], num_ranks=2)


@pytest.mark.distributed
@pytest.mark.parametrize("case", range(len(CASES)))
def test_losses_gradients_and_weights_are_those_of_one_process(
    pair: list[Found], alone: list[Found], case: int
) -> None:
    require_same(pair[case], alone[case])
    assert min(alone[case]["norms"].values()) > CLIP, "every step is clipped"


@pytest.mark.distributed
def test_two_pairs_with_tokens_of_their_own_train_as_one_process(folder: Path, alone: list[Found]) -> None:
    (pairs,) = trained(folder, [PAIR | CASES[0] | {"micro_batch_sequences": 2}], num_ranks=4)
    require_same(pairs, alone[0])


@pytest.mark.distributed
def test_a_resumed_pair_goes_on_to_the_last_bit(pair: list[Found]) -> None:
    straight, resumed = pair[0], pair[-1]
    assert resumed["losses"] == {step: straight["losses"][step] for step in (2, 3)}
    for name, weight in straight["weights"].items():
        assert torch.equal(resumed["weights"][name], weight), name


@pytest.mark.distributed
def test_one_process_goes_on_from_a_pair(folder: Path, pair: list[Found], alone: list[Found]) -> None:
    assert pair
    (single,) = trained(folder, [CASES[0] | ALONE | {"resume": "pair"}])
    require_same_end(single, alone[0])


def test_groups_that_do_not_divide_the_ranks_are_refused_with_the_nearest_that_do() -> None:
    with pytest.raises(ConfigurationError, match=r"strategy.tensor_size=4 does not divide 6 ranks .* valid: 3"):
        tensor(num_ranks=6, compute_dtype=torch.float32, tensor_size=4)


def test_a_device_holds_its_part_alone() -> None:
    facts = tensor_facts(tensor_size=4)
    assert (facts.num_shards(8), facts.tensor_ranks, facts.cuts_parameters) == (1, 4, True)


@pytest.mark.distributed
@pytest.mark.parametrize(("case", "share_again"), [(2, 0.0), (1, 1.0)])
def test_a_step_sends_what_its_facts_say(pair: list[Found], case: int, share_again: float) -> None:
    """And one message each with small parameters' gradients, the step's loss and tokens, and its norm."""
    facts = {"gathered": 0.0, "num_gradients": 0.0, "micro_steps": 2}
    stream = Stream(num_tokens=64, num_bytes=64 * 16 * 4, num_layers=2, share_again=share_again)
    (group,) = tensor_facts(tensor_size=2).collectives(num_ranks=2, stream=stream, **facts)
    *messages, of_parts, of_loss, of_norm = pair[case]["sent"][-1]
    assert of_norm.num_bytes == 4
    assert sum(each.sent for each in messages) == group.num_bytes
    assert (of_parts.kind, of_loss.num_bytes) == ("reduce", 16)
    assert of_parts.num_bytes < 2000, "norms and biases, not matrices"
