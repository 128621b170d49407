"""Values against the signatures of their targets, from the source and from the code."""

from pathlib import Path
from typing import Any, Literal

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.schema.check import check_value
from lmtrain.run.schema.signatures import (
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
        (["a", 1], list[Any], ["a", 1]),
        ([3, 4], tuple[int, ...], (3, 4)),
    ],
)
def test_values_fit_their_annotation(value: object, annotation: object, expected: object) -> None:
    assert check_value(value, annotation, key="callbacks.checkpoint.every_seconds") == expected


def test_a_word_that_is_no_choice_is_refused_with_the_choices() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"^model\.kind: must be one of small, large or null, got smal\. Did you mean 'small'\?$",
    ):
        check_value("smal", Literal["small", "large"] | None, key="model.kind")
    with pytest.raises(ConfigurationError, match=r"Did you mean 'source\.paths=\[a\]'"):
        check_value("a", list[str], key="source.paths")


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("lmtrain.callbacks.evaluate_aside.EvaluateAside", {"words"}),
        ("lmtrain.run.settings.RunSettings", {"cache"}),
        ("lmtrain.run.run_config.RunSettings", {"cache"}),  # imported there
        ("lmtrain.models.llama.Llama", set()),
        ("torch.optim.AdamW", set()),
    ],
)
def test_the_settings_that_no_file_decides_are_marked(target, names):
    assert typed_alone(target) == names
