from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import TypeAdapter

from lmtrain.errors import ConfigurationError
from lmtrain.run.schema.check import check_call, check_node, check_value

BATCH = {
    "_target_": "lmtrain.accounting.batches.Batch",
    "context_tokens": 256,
    "tokens_per_step": 2048,
    "micro_batch_sequences": None,
}


def checked(**changes: Any) -> dict[str, Any]:
    return check_node({**BATCH, **changes}, key="batch")


def test_a_right_node_passes_unchanged() -> None:
    assert checked() == BATCH


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


def test_a_partial_node_may_wait_for_arguments() -> None:
    node = {"_target_": BATCH["_target_"], "_partial_": True}
    assert check_node(node, key="batch") == node


def test_a_value_left_open_must_be_set() -> None:
    with pytest.raises(ConfigurationError, match=r"batch\.context_tokens has no value"):
        checked(context_tokens="???")


def test_nodes_inside_nodes_are_checked_under_their_full_key() -> None:
    with pytest.raises(ConfigurationError, match=r"batch\.inner\.tokens_per_step=x is not a number"):
        check_node({"inner": {**BATCH, "tokens_per_step": "x"}}, key="batch")


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


def test_settings_begun_on_the_command_line_that_may_be_of_two_classes_have_to_name_one() -> None:
    message = rf"model\.part=.* may be {__name__}\.OtherPart or {__name__}\.Part; set \+model\.part\._target_"
    with pytest.raises(ConfigurationError, match=message):
        check_call(of_either_part, {"part": {"num_parts": 2}}, key="model", allowed=[])


def test_a_word_that_is_no_choice_is_refused_with_the_choices() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^model\.kind=smal is none of small, large, or null\. Did you mean 'small'\?$"
    ):
        check_value("smal", Literal["small", "large"] | None, key="model.kind")
    with pytest.raises(ConfigurationError, match=r"nearest valid: 'source\.paths=\[a\]'"):
        check_value("a", list[str], key="source.paths")


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (3, int),
        (3, float),
        (0.5, float | None),
        (2, float | None),
        (2**60, float),
        (None, int | None),
        ("a", Literal["a", "b"]),
        ("a", str | None),
        (True, bool | None),
        (1, int | float),
        ("auto", int | Literal["auto"] | None),
        ({"a": 1}, Any),
    ],
)
def test_what_needs_no_conversion_is_what_pydantic_makes_of_it(value: Any, annotation: Any) -> None:
    found, wanted = check_value(value, annotation, key="a"), TypeAdapter(annotation).validate_python(value)
    assert (found, type(found)) == (wanted, type(wanted))
