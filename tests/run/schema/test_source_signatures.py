import inspect
import subprocess
import sys
import typing
from typing import Literal

import pytest

from lmtrain.accounting.cluster import Cluster
from lmtrain.models.llama import Llama
from lmtrain.models.nano import nano
from lmtrain.run.schema.source_signatures import (
    built_class,
    default_settings,
    setting_names,
    setting_types,
    typed_alone,
)

PARTS = {
    "lmtrain.models.llama.Llama": Llama,
    "lmtrain.models.nano.nano": nano,
    "lmtrain.accounting.cluster.Cluster": Cluster,
}


@pytest.mark.parametrize("target", PARTS)
def test_the_names_are_those_of_the_signature(target):
    assert setting_names(target) == set(inspect.signature(PARTS[target]).parameters)


@pytest.mark.parametrize(
    "target", ["torch.optim.AdamW", "lmtrain.models.llama.Lama", "lmtrain.modles.llama.Llama", "x"]
)
def test_what_is_not_ours_or_not_there_has_none(target):
    assert setting_names(target) == frozenset()


def test_no_part_is_loaded_for_it():
    code = (
        "import sys; from lmtrain.run.schema.source_signatures import setting_names;"
        "assert 'width' in setting_names('lmtrain.models.llama.Llama'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("target", PARTS)
def test_defaults_that_are_plain_values_are_those_of_the_signature(target):
    parameters = inspect.signature(PARTS[target]).parameters.values()
    known = {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}
    plain = {name: value for name, value in known.items() if not callable(value) and repr(value) != "<factory>"}
    assert default_settings(target) == plain


@pytest.mark.parametrize("target", PARTS)
def test_types_that_are_plain_are_those_of_the_signature(target):
    part = PARTS[target]
    hints = typing.get_type_hints(part.__init__ if isinstance(part, type) else part)
    types = setting_types(target)
    assert types
    assert {name: hints[name] for name in types} == types


def test_words_and_none_are_plain_too():
    assert setting_types("lmtrain.accounting.batches.Batch")["micro_batch_sequences"] == int | Literal["auto"] | None


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
