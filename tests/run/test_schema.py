"""Values against the signatures of their targets, from the source and from the code."""

import typing
from pathlib import Path
from typing import Any, Literal

import pytest

from lmtrain.accounting.cluster import Cluster
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.models.llama import Llama
from lmtrain.models.nano import nano
from lmtrain.run.schema.check import check_value
from lmtrain.run.schema.node import canonical, instantiate
from lmtrain.run.schema.signatures import (
    setting_types,
    typed_alone,
)


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (1, float, 1.0),
        ("1h", float | None, 3600),
        ("1h", int | Literal["auto"] | None, 3600),
        ("auto", int | Literal["auto"] | None, "auto"),
        ("1h", int | str, "1h"),
        (None, int | None, None),
        (7, str | None, "7"),
        (True, bool, True),
        ("data/a", Path | None, "data/a"),
    ],
)
def test_values_fit_their_annotation(value: object, annotation: object, expected: object) -> None:
    assert check_value(value, annotation, key="callbacks.checkpoint.every_seconds") == expected


def test_a_word_that_is_no_choice_is_refused_with_the_choices() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^model\.kind=smal must be one of small, large, or null\. Did you mean 'small'\?$"
    ):
        check_value("smal", Literal["small", "large"] | None, key="model.kind")
    with pytest.raises(ConfigurationError, match=r"Did you mean 'source\.paths=\[a\]'"):
        check_value("a", list[str], key="source.paths")


FACTS = {"context": "the context", "num_ranks": 4, "compute_dtype": "bf16"}


class BuiltPart:
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


@pytest.mark.parametrize(("name", "more"), [("num_ranks", {}), ("other", {"other": 1})])
def test_a_setting_that_would_be_overwritten_is_refused(name: str, more: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=f"strategy.{name}=3 has no effect"):
        instantiate(node(BuiltPart, **{name: 3}), key="strategy", facts=FACTS, **more)


@pytest.mark.parametrize(
    "wrap",
    [lambda inner: inner, lambda inner: node(BuiltPart, other=inner), lambda inner: node(BuiltPart, other=[inner])],
)
@pytest.mark.parametrize(("error", "kind"), [("ours", ConfigurationError), ("data", DataError)])
def test_a_refusal_of_ours_comes_through_as_it_is_from_any_depth(wrap: Any, error: str, kind: type[Exception]) -> None:
    with pytest.raises(kind) as refused:
        instantiate(wrap(node(Refusing, error=error)), key="part")
    assert type(refused.value) is kind
    assert str(refused.value) in ("x=1 is not 2", "no such file")


MODEL = {"_target_": "lmtrain.models.llama.Llama", "width": 128, "num_layers": 2}


def test_a_setting_that_repeats_its_default_is_left_out():
    assert canonical({**MODEL, "qk_norm": False, "norm_eps": "1e-5"}, key="model") == canonical(MODEL, key="model")
    assert canonical({**MODEL, "qk_norm": True}, key="model") != canonical(MODEL, key="model")


PARTS = {
    "lmtrain.models.llama.Llama": Llama,
    "lmtrain.models.nano.nano": nano,
    "lmtrain.accounting.cluster.Cluster": Cluster,
}


@pytest.mark.parametrize("target", PARTS)
def test_types_that_are_plain_are_those_of_the_signature(target):
    part = PARTS[target]
    hints = typing.get_type_hints(part.__init__ if isinstance(part, type) else part)
    types = setting_types(target)
    assert types
    assert {name: hints[name] for name in types} == types


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("lmtrain.callbacks.evaluate_aside.EvaluateAside", {"words", "slurm"}),
        ("lmtrain.run.settings.RunSettings", {"cache"}),
        ("lmtrain.run.run_config.RunSettings", {"cache"}),  # imported there
        ("lmtrain.models.llama.Llama", set()),
        ("torch.optim.AdamW", set()),
    ],
)
def test_the_settings_that_no_file_decides_are_marked(target, names):
    assert typed_alone(target) == names
