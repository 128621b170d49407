import functools
from typing import Any

import pytest

from lmtrain.accounting.batches import Batch
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.run.schema.instantiate import instantiate

FACTS = {"context": "the context", "num_ranks": 4, "compute_dtype": "bf16"}
BATCH = {"_target_": "lmtrain.accounting.batches.Batch", "context_tokens": 8, "tokens_per_step": 16}


class Part:
    """Takes some of the facts that are known late."""

    def __init__(self, *, context: Any = None, num_ranks: int = 1, other: Any = None) -> None:
        self.context, self.num_ranks, self.other = context, num_ranks, other


class Refusing:
    """Cannot be built."""

    def __init__(self, *, error: str) -> None:
        errors = {"ours": ConfigurationError("x=1 is not 2"), "data": DataError("no such file"), "bug": KeyError("bug")}
        raise errors[error]


def node(target: type, **settings: Any) -> dict[str, Any]:
    return {"_target_": f"{__name__}.{target.__name__}", **settings}


def test_a_node_becomes_its_object() -> None:
    assert instantiate(BATCH, key="batch") == Batch(context_tokens=8, tokens_per_step=16)


def test_a_partial_is_an_ordinary_one() -> None:
    """Hydra's own checks its target anew at each call, half a millisecond that a schedule would pay at every step."""
    built = instantiate(node(Part, other=node(Part, _partial_=True), _partial_=True), key="part")
    assert type(built) is functools.partial
    part = built(num_ranks=2)
    assert part.num_ranks == 2
    assert type(part.other) is functools.partial
    assert part.other.func is Part


def test_facts_known_late_fill_the_parameters_of_their_names() -> None:
    part = instantiate(node(Part), key="callbacks.part", facts=FACTS)
    assert (part.context, part.num_ranks, part.other) == ("the context", 4, None)


def test_only_facts_that_the_check_lets_be_missing_are_filled_in() -> None:
    assert instantiate(node(Part), key="callbacks.part", facts={"other": 1, "num_ranks": 2}).other is None


def test_what_the_caller_passes_always_arrives() -> None:
    part = instantiate(node(Part, _partial_=True), key="part", facts=FACTS, other={"a": 1})
    assert (part.num_ranks, part.other) == (4, {"a": 1})


@pytest.mark.parametrize(("name", "more"), [("num_ranks", {}), ("other", {"other": 1})])
def test_a_setting_that_would_be_overwritten_is_refused(name: str, more: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=f"strategy.{name}=3 has no effect"):
        instantiate(node(Part, **{name: 3}), key="strategy", facts=FACTS, **more)


def test_a_partial_node_waits_for_the_rest() -> None:
    wait = instantiate(node(Part, _partial_=True, num_ranks=2), key="part", facts={"context": "c"})
    part = wait(other=3)
    assert (part.context, part.num_ranks, part.other) == ("c", 2, 3)
    assert wait(other=4) is not part


def test_nodes_inside_nodes_are_built_and_plain_values_stay_plain() -> None:
    part = instantiate(node(Part, other={"batch": BATCH, "list": [1, {"a": None}]}), key="part")
    assert part.other["batch"] == Batch(context_tokens=8, tokens_per_step=16)
    assert part.other["list"] == [1, {"a": None}]
    assert (type(part.other), type(part.other["list"])) == (dict, list)


def test_a_node_is_never_changed() -> None:
    settings = node(Part, _partial_=True, other={"batch": BATCH})
    before = repr(settings)
    instantiate(settings, key="part", facts=FACTS)
    assert repr(settings) == before


@pytest.mark.parametrize(
    "wrap", [lambda inner: inner, lambda inner: node(Part, other=inner), lambda inner: node(Part, other=[inner])]
)
@pytest.mark.parametrize(("error", "kind"), [("ours", ConfigurationError), ("data", DataError)])
def test_a_refusal_of_ours_comes_through_as_it_is_from_any_depth(wrap: Any, error: str, kind: type[Exception]) -> None:
    with pytest.raises(kind) as refused:
        instantiate(wrap(node(Refusing, error=error)), key="part")
    assert type(refused.value) is kind
    assert str(refused.value) in ("x=1 is not 2", "no such file")


def test_a_constructor_s_bug_keeps_its_own_traceback() -> None:
    with pytest.raises(KeyError, match="bug"):
        instantiate(node(Refusing, error="bug"), key="part")


def test_a_bug_further_inside_is_told_under_the_key() -> None:
    with pytest.raises(ConfigurationError, match=r"model \(.*Part\) could not be built: 'bug'"):
        instantiate(node(Part, other=node(Refusing, error="bug")), key="model")
