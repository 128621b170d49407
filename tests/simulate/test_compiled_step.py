"""A compiled model's events: the same products and messages as eagerly, fewer bytes, and less memory kept."""

from dataclasses import replace

from lmtrain.accounting.training_plan.simulated_step import Kernel, Message
from lmtrain.simulate.rank_step import record_step
from lmtrain.simulate.recorder import Recorded
from tests.simulate.real_step import simulated


def recorded(*, is_compiled: bool = False, recomputes: bool = False, word: str = "fsdp") -> Recorded:
    """Return the only micro-step of a tiny model's step."""
    parts = simulated(word, num_ranks=4, micro_steps=1, recomputes=recomputes)
    (only,) = record_step(replace(parts, is_compiled=is_compiled), num_blocks=2).micro_steps
    return only


def kernels(record: Recorded) -> list[Kernel]:
    """Return the kernels of a record."""
    return [event for event in record.events if isinstance(event, Kernel)]


def messages(record: Recorded) -> list[Message]:
    """Return the messages of a record."""
    return [event for event in record.events if isinstance(event, Message)]


def test_a_compiled_step_has_the_same_products_and_messages_and_moves_and_keeps_less() -> None:
    eager, compiled, again = recorded(), recorded(is_compiled=True), recorded(is_compiled=True, recomputes=True)
    for kind in ("flops", "dtype"):
        found, truth = (sorted(getattr(one, kind) for one in kernels(run) if one.dtype) for run in (compiled, eager))
        assert found == truth
    assert messages(compiled) == messages(eager) == messages(again)
    assert {event.phase for event in kernels(compiled)} == {"forward", "backward"}
    assert sum(one.num_bytes for one in kernels(compiled)) < 0.8 * sum(one.num_bytes for one in kernels(eager))
    of_one, of_two = (sum(one.flops for one in kernels(run)) for run in (compiled, again))
    assert 1.05 * of_one < of_two < 4 / 3 * of_one, "without the head, and the last products, which nothing needs"
    kept = [run.peaks["backward"]["activations"] for run in (eager, compiled, again)]
    assert sorted(kept, reverse=True) == kept


def test_messages_of_a_tensor_group_are_those_of_eager_blocks_and_awaited_at_once() -> None:
    eager, compiled = (recorded(is_compiled=one, recomputes=True, word="fsdp_tensor") for one in (False, True))
    found, truth = (sorted(messages(run), key=repr) for run in (compiled, eager))
    assert found == truth
    of_group = [one for one in found if one.num_ranks == 2 and one.stride == 1]
    assert {(one.kind, one.awaited, one.phase) for one in of_group} >= {
        ("gather", "at once", "forward"),
        ("scatter", "at once", "backward"),
    }
    assert compiled.peaks["forward"]["activations"] <= eager.peaks["forward"]["activations"]
    for phase in ("forward", "backward"):
        assert sum(compiled.peaks[phase].values()) <= sum(eager.peaks[phase].values())
