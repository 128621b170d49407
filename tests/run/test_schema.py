"""Values against the signatures of their targets, from the source and from the code."""

import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from lmtrain.accounting.batches import Batch
from lmtrain.accounting.cluster import Cluster
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.models.llama import Llama
from lmtrain.models.nano import nano
from lmtrain.run.schema.check import check_call, check_node, check_value
from lmtrain.run.schema.node import Node, canonical, instantiate
from lmtrain.run.schema.signatures import (
    built_class,
    setting_types,
    typed_alone,
)

BATCH = {
    "_target_": "lmtrain.accounting.batches.Batch",
    "context_tokens": 256,
    "tokens_per_step": 2048,
    "micro_batch_sequences": None,
}


def checked(**changes: Any) -> dict[str, Any]:
    return check_node({**BATCH, **changes}, key="batch")


def test_amounts_for_people_become_numbers() -> None:
    assert checked(tokens_per_step="4K")["tokens_per_step"] == 4000


def test_an_unknown_key_names_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match=r"batch\.contxt_tokens=1.*Did you mean 'context_tokens'"):
        checked(contxt_tokens=1)


@pytest.mark.parametrize("value", ["abc", 1.5, True, [1]])
def test_a_value_of_another_type_is_refused_under_its_full_key(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"batch\.context_tokens="):
        checked(context_tokens=value)


def test_a_missing_argument_is_named() -> None:
    node = {name: value for name, value in BATCH.items() if name != "context_tokens"}
    with pytest.raises(ConfigurationError, match=r"batch\.context_tokens is missing"):
        check_node(node, key="batch")


def test_a_value_left_open_must_be_set() -> None:
    with pytest.raises(ConfigurationError, match=r"batch\.context_tokens has no value"):
        checked(context_tokens="???")


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


@dataclass(frozen=True, kw_only=True)
class Part:
    """Stands in for a group of settings."""

    num_parts: int
    kind: Literal["small", "large"] | None = None


@dataclass(frozen=True, kw_only=True)
class OtherPart:
    """Stands in for another."""

    num_parts: int


def of_one_part(*, part: Part | None = None) -> None:
    """Take a group of settings."""


def of_either_part(*, part: Part | OtherPart | None = None) -> None:
    """Take one of two."""


def test_settings_begun_on_the_command_line_are_of_the_only_class_there_is() -> None:
    checked = check_call(of_one_part, {"part": {"num_parts": "2"}}, key="model", allowed=[f"{__name__}."])
    assert checked == {"part": {"_target_": f"{__name__}.Part", "num_parts": 2}}


def test_a_word_that_is_no_choice_is_refused_with_the_choices() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^model\.kind=smal must be one of small, large, or null\. Did you mean 'small'\?$"
    ):
        check_value("smal", Literal["small", "large"] | None, key="model.kind")
    with pytest.raises(ConfigurationError, match=r"nearest valid: 'source\.paths=\[a\]'"):
        check_value("a", list[str], key="source.paths")


FACTS = {"context": "the context", "num_ranks": 4, "compute_dtype": "bf16"}
SMALL_BATCH = {"_target_": "lmtrain.accounting.batches.Batch", "context_tokens": 8, "tokens_per_step": 16}


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


def test_a_node_becomes_its_object() -> None:
    assert instantiate(SMALL_BATCH, key="batch") == Batch(context_tokens=8, tokens_per_step=16)


@pytest.mark.parametrize(("name", "more"), [("num_ranks", {}), ("other", {"other": 1})])
def test_a_setting_that_would_be_overwritten_is_refused(name: str, more: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=f"strategy.{name}=3 has no effect"):
        instantiate(node(BuiltPart, **{name: 3}), key="strategy", facts=FACTS, **more)


def test_nodes_inside_nodes_are_built_and_plain_values_stay_plain() -> None:
    part = instantiate(node(BuiltPart, other={"batch": SMALL_BATCH, "list": [1, {"a": None}]}), key="part")
    assert part.other["batch"] == Batch(context_tokens=8, tokens_per_step=16)
    assert part.other["list"] == [1, {"a": None}]
    assert (type(part.other), type(part.other["list"])) == (dict, list)


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


VALUES = {"_target_": "lmtrain.accounting.batches.Batch", "context_tokens": "1K", "tokens_per_step": 2048}
NODE = Node("batch", VALUES)


def test_a_checked_node_has_numbers_and_builds():
    checked = NODE.checked()
    assert checked.get("context_tokens") == 1000
    assert checked.build() == Batch(context_tokens=1000, tokens_per_step=2048)
    with pytest.raises(ConfigurationError, match=r"batch\.contxt=1 is not a setting.*'context_tokens'"):
        NODE.changed(contxt=1).checked()


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


def test_a_class_is_found_also_behind_a_function() -> None:
    found = [built_class(f"lmtrain.models.{name}") for name in ("llama.Llama", "nano.nano", "gpt2.GPT2", "none.There")]
    assert found == ["Llama", "Llama", "GPT2", None]
    assert built_class("mine.Llama") is None
