"""Two ranks that share each sequence, and two such pairs, held to a single process. Resumed: the trail of all."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lmtrain.accounting.options.strategy import Stream
from lmtrain.errors import ConfigurationError
from lmtrain.parallel.context import context, context_facts
from tests.parallel.strategy_parity import CLIP, Found, require_same, trained

CASES: list[dict[str, Any]] = [
    {"model": "llama", "optimizer": "adamw", "loss": "plain"},
    {"model": "gpt2", "optimizer": "adamw", "loss": "chunked", "recompute": True},
    {"model": "nano", "optimizer": "muon", "loss": "chunked", "recompute": "selective"},
    {"model": "olmoe", "optimizer": "adamw", "loss": "plain", "micro_batch_sequences": 4},
    {"model": "llama", "optimizer": "adamw", "loss": "plain", "recompute": True, "compile": "captured"},
]
PAIR = {"strategy": "context", "settings": {"context_size": 2}, "micro_batch_sequences": 4}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """All trainings in one process, a whole step at once but where experts are balanced in micro-batches."""
    plain = [{"micro_batch_sequences": 8} | case | {"compile": "none", "recompute": False} for case in CASES]
    return trained(tmp_path_factory.mktemp("alone"), [{"strategy": "single"} | case for case in plain])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """All on a group of two ranks, with two micro-steps a step."""
    return trained(tmp_path_factory.mktemp("pair"), [PAIR | case for case in CASES], num_ranks=2)


@pytest.mark.distributed
@pytest.mark.parametrize("case", range(len(CASES)))
def test_losses_gradients_and_weights_are_those_of_one_process(
    pair: list[Found], alone: list[Found], case: int
) -> None:
    require_same(pair[case], alone[case])
    assert min(alone[case]["norms"].values()) > CLIP, "every step is clipped"


@pytest.mark.distributed
def test_two_pairs_and_a_group_of_four_train_as_one_process(tmp_path: Path, alone: list[Found]) -> None:
    pairs = PAIR | CASES[2] | {"micro_batch_sequences": 2}
    of_four = PAIR | CASES[1] | {"settings": {"context_size": 4, "reduce_every_micro_step": True}}
    for found, expected in zip(trained(tmp_path, [pairs, of_four], num_ranks=4), (alone[2], alone[1]), strict=True):
        require_same(found, expected)


@pytest.mark.distributed
@pytest.mark.parametrize(("case", "width", "share_again"), [(0, 16 + 8 + 8 + 16, 0.0), (1, 4 * 16, 1.0)])
def test_a_step_exchanges_what_its_facts_say(pair: list[Found], case: int, width: int, share_again: float) -> None:
    facts = {"gathered": 0.0, "num_gradients": 0.0, "micro_steps": 2}
    stream = Stream(
        num_tokens=64, num_bytes=64 * 16 * 4, num_layers=2, share_again=share_again, attention_bytes=64 * 2 * width * 4
    )
    group, _ = context_facts(context_size=2).collectives(num_ranks=2, stream=stream, **facts)
    exchanged = [each.sent for each in pair[case]["sent"][-1] if each.kind == "exchange"]
    assert (group.group, sum(exchanged)) == ("context groups", group.num_bytes)
    assert len(exchanged) == (4 + 2 * share_again) * 2 * 2, "of two layers and two micro-steps"


def test_groups_that_do_not_divide_the_ranks_are_refused_with_the_nearest_that_do() -> None:
    with pytest.raises(ConfigurationError, match=r"strategy.context_size=4 does not divide 6 ranks .* valid: 3"):
        context(num_ranks=6, compute_dtype=torch.float32, context_size=4)


def test_weights_are_sharded_over_all_ranks() -> None:
    facts = context_facts(context_size=4)
    assert (facts.num_shards(8), facts.context_ranks, facts.cuts_parameters, facts.shards_most) == (8, 4, True, False)
    assert ("context_size=8",) in list(facts.settings_for_less(8))
