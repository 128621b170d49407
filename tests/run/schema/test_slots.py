from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lmtrain.data.layout import DatasetFolder
from lmtrain.data.shards import existing_folder
from lmtrain.models.attention.base import Attention
from lmtrain.models.attention.sdpa import SDPA
from lmtrain.models.rope import LinearRopeScaling, RopeScaling
from lmtrain.run.compose.paths import group_folders
from lmtrain.run.schema.slots import SLOTS, Slot, describe, fits, slot_at, slot_of
from lmtrain.storage.hashed_folder import start_aside


def test_every_group_of_options_has_a_slot() -> None:
    groups = {path.name for path in group_folders()}
    assert groups - SLOTS.keys() == {"base", "experiment", "debug", "hardware", "hparams_search", "task"}


def test_a_member_of_a_group_stands_in_its_slot_and_an_unknown_key_takes_nothing() -> None:
    assert slot_at("callbacks.checkpoint") == SLOTS["callbacks"]
    assert slot_at("nowhere").kinds == ()
    assert describe(slot_at("nowhere")) == "plain values alone"


@pytest.mark.parametrize(
    ("annotation", "kinds"),
    [
        (int | None, ()),
        (Path, ()),
        (Any, ()),
        (Attention, (Attention,)),
        (RopeScaling | LinearRopeScaling | None, (RopeScaling, LinearRopeScaling)),
        (Mapping[str, Attention] | None, (Attention,)),
        (list[Attention], (Attention,)),
        (DatasetFolder | Path, (DatasetFolder,)),
    ],
)
def test_an_argument_takes_the_classes_of_its_annotation(annotation: Any, kinds: tuple[Any, ...]) -> None:
    assert slot_of(annotation).kinds == kinds


def test_a_class_of_the_kind_and_a_function_that_returns_it_fit() -> None:
    assert fits(SDPA, Slot((Attention,)))
    assert not fits(SDPA, Slot((RopeScaling,)))
    assert fits(existing_folder, Slot((DatasetFolder,)))
    assert not fits(start_aside, Slot((DatasetFolder, type(None))))  # it takes a folder by position


def test_a_function_is_called_with_what_the_slot_passes() -> None:
    def factor(step: int, total_steps: int, *, low: float = 0.0) -> float: ...
    def other(path: str) -> float: ...

    assert fits(factor, SLOTS["schedule"])
    assert not fits(other, SLOTS["schedule"])
