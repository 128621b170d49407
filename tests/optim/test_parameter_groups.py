"""Every trainable parameter in exactly one kind, and in the right one."""

from torch import nn

from lmtrain.optim.parameter_groups import (
    KINDS,
    ParameterKinds,
    parameter_groups,
    sort_parameters,
)
from tests.optim.models import tiny_model


def names_of(model: nn.Module, kinds: ParameterKinds) -> dict[str, set[str]]:
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    return {kind: {name_of[id(p)] for p in getattr(kinds, kind)} for kind in ParameterKinds.__dataclass_fields__}


def test_every_parameter_is_in_exactly_one_kind() -> None:
    for model in (tiny_model(), tiny_model(tied=True)):
        kinds = sort_parameters(model)
        sorted_ids = [id(p) for kind in ParameterKinds.__dataclass_fields__ for p in getattr(kinds, kind)]
        assert sorted(sorted_ids) == sorted(id(p) for p in model.parameters())


def test_kinds_follow_what_a_parameter_does() -> None:
    model = tiny_model()
    names = names_of(model, sort_parameters(model))
    assert names["matrices"] == {
        f"blocks.{i}.{name}.weight" for i in range(2) for name in ("left", "right", "up", "down")
    }
    assert names["embeddings"] == {"embedding.weight", "blocks.0.values.weight", "blocks.1.values.weight"}
    assert names["head"] == {"head.weight"}
    assert "blocks.0.right.bias" in names["vectors"]


def test_tied_head_counts_as_an_embedding() -> None:
    model = tiny_model(tied=True)
    kinds = sort_parameters(model)
    assert kinds.head == ()
    assert any(parameter is model.head.weight for parameter in kinds.embeddings)


def test_groups_decay_matrices_and_head_and_take_their_multiple_of_the_rate() -> None:
    groups = parameter_groups(
        tiny_model(), lr=0.1, weight_decay=0.2, lr_multipliers={"embeddings": 3.0, "vectors": 0.5}
    )
    assert {group["name"]: (round(group["lr"], 9), group["weight_decay"]) for group in groups} == {
        "matrices": (0.1, 0.2), "head": (0.1, 0.2), "embeddings": (0.3, 0.0), "vectors": (0.05, 0.0),
    }  # fmt: skip
    assert {group["name"] for group in groups} == set(KINDS)
