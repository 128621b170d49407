"""Two copies of two shards on four ranks, held to a single process, and resumed in other layouts."""

from pathlib import Path

import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.parallel.hsdp import hsdp, hsdp_facts
from tests.parallel.strategy_parity import CLIP, RELATIVE, Found, require_same, require_same_end, trained

MICRO_STEPS = 2
HYBRID = {"strategy": "hsdp", "settings": {"shard_size": 2}}
PLAIN = {"model": "llama", "optimizer": "muon", "loss": "plain"}
CHUNKED = {"model": "gpt2", "optimizer": "adamw", "loss": "chunked", "recompute": True}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """Both trainings in one process, a whole step at once."""
    folder = tmp_path_factory.mktemp("alone")
    return trained(folder, [{"strategy": "single", "micro_batch_sequences": 8} | case for case in (PLAIN, CHUNKED)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoints."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def together(folder: Path) -> list[Found]:
    """Both on four ranks, with two micro-steps a step, the second with a scatter at each of them.

    Then the first again, from its first step on, by FSDP.
    """
    often = {"strategy": "hsdp", "settings": {"shard_size": 2, "reduce_every_micro_step": True}}
    cases = [HYBRID | PLAIN | {"save_to": "hybrid"}, often | CHUNKED]
    again = PLAIN | {"strategy": "fsdp", "resume": "hybrid", "steps": 2, "save_to": "sharded", "save_at": 2}
    return trained(folder, [*cases, again], num_ranks=4)


@pytest.mark.distributed
@pytest.mark.parametrize("case", [0, 1])
def test_losses_gradients_and_weights_are_those_of_one_process(
    together: list[Found], alone: list[Found], case: int
) -> None:
    require_same(together[case], alone[case])
    assert min(alone[case]["norms"].values()) > CLIP, "every step is clipped"


@pytest.mark.distributed
def test_gradients_are_scattered_at_each_micro_step_where_asked_and_copies_averaged_once(
    together: list[Found],
) -> None:
    for messages in together[1]["sent"][1:]:
        kinds = [each.kind for each in messages if each.num_ranks == 2 and each.num_bytes > 4]
        assert (kinds.count("scatter"), kinds.count("reduce")) == (3 * MICRO_STEPS, 3)


@pytest.mark.distributed
def test_a_step_sends_what_its_facts_say_by_group(together: list[Found]) -> None:
    """Two blocks and the rest, which stays gathered for the backward pass; FSDP pads a row of 301 for two shards.

    The norm's one number is left out.
    """
    sizes = {name: weight.numel() for name, weight in together[0]["weights"].items()}
    in_blocks = sum(size for name, size in sizes.items() if name.startswith("layers."))
    spread, num = hsdp_facts(shard_size=2), sum(sizes.values())
    step = {"num_ranks": 4, "gathered": 4 * num, "num_gradients": num, "micro_steps": MICRO_STEPS}
    shards, copies = spread.collectives(**step)
    for messages in together[0]["sent"][1:]:  # the first one also gathers gradients to compare
        sent = {
            kind: [each.sent for each in messages if (each.kind, each.num_ranks) == (kind, 2) and each.num_bytes > 4]
            for kind in ("gather", "scatter", "reduce")
        }
        assert [len(sent[kind]) for kind in ("scatter", "reduce")] == [3, 3], "one reduction a step"
        assert sum(sent["scatter"]) == pytest.approx(shards.reduced_bytes, rel=0.01)
        assert sum(sent["reduce"]) == pytest.approx(copies.reduced_bytes, rel=0.01)
        second_of_the_rest = MICRO_STEPS * 4 * (num - in_blocks) / 2
        of_muon = sent["gather"][-1]
        assert sum(sent["gather"]) - of_muon == pytest.approx(shards.gathered_bytes - second_of_the_rest, rel=0.01)


@pytest.mark.distributed
def test_a_checkpoint_goes_on_in_other_layouts_and_back(
    folder: Path, together: list[Found], alone: list[Found]
) -> None:
    assert together[2]["losses"] == pytest.approx({2: alone[0]["losses"][2]}, rel=RELATIVE)
    one = {"strategy": "single", "resume": "sharded", "steps": 3, "save_to": "whole", "save_at": 2}
    (plain,) = trained(folder, [PLAIN | one | {"micro_batch_sequences": 2}])
    require_same_end(plain, alone[0])


def test_ranks_that_do_not_divide_into_groups_are_refused_with_the_nearest_that_do() -> None:
    words = r"strategy.shard_size=8 does not divide 12 ranks \(trainer.devices x trainer.num_nodes\); nearest valid: 6."
    with pytest.raises(ConfigurationError, match=words):
        hsdp(num_ranks=12, compute_dtype=torch.float32, shard_size=8)


def test_a_copy_has_its_own_size_and_is_cast_while_it_is_gathered() -> None:
    facts = hsdp_facts(shard_size=8, reshard_after_forward=False)
    assert (facts.num_shards(64), facts.casts_parameters, facts.reshard_after_forward) == (8, True, False)
