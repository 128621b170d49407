import json
from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.errors import ConfigurationError
from lmtrain.run.stored_runs.other_model import require_same_parameters, require_same_sizes

SIZES = {"width": 64, "num_layers": 2, "num_heads": 2, "value_embedding_layers": [1]}
LLAMA = {"_target_": "lmtrain.models.llama.Llama", **SIZES}
SHAPE = ModelShape(100, num_embedding_parameters=40, num_matmul_parameters=60, num_active_parameters=100, attention=())


def run_of(root: Path, *, trained: int = 100) -> str:
    attempt = root / "a" / "attempts" / "1"
    attempt.mkdir(parents=True)
    job = {"config": {"model": LLAMA}, "overrides": [], "name": "a", "root": str(root)}
    (attempt / "job.json").write_text(json.dumps(job))
    (root / "a" / "plan.json").write_text(json.dumps({"parameters": {"total": 100, "trained": trained}}))
    return str(root / "a")


@pytest.mark.parametrize(
    "here",
    [LLAMA, LLAMA | {"num_heads": 4}, LLAMA | {"attention": None}, LLAMA | {"_target_": "mine.Model", "width": 1}],
)
def test_a_model_of_the_same_sizes_passes(here: dict[str, object], tmp_path: Path) -> None:
    require_same_sizes(run_of(tmp_path), here)


def test_another_size_is_refused_with_all_differing_settings(tmp_path: Path) -> None:
    said = r"model: model\.width is 64 there and 128 here\. Leave out .*: model\.width=128, there 64; model\.num_h"
    with pytest.raises(ConfigurationError, match=said):
        require_same_sizes(run_of(tmp_path), LLAMA | {"width": 128, "num_heads": 4})
    with pytest.raises(ConfigurationError, match=r"model\.value_embedding_layers is \[1\] there and \[0\] here"):
        require_same_sizes(str(tmp_path / "a"), LLAMA | {"value_embedding_layers": [0]})


def test_another_class_of_ours_is_refused_with_its_fix_and_three_settings(tmp_path: Path) -> None:
    here = {"_target_": "lmtrain.models.gpt2.GPT2", "width": 64, "num_layers": 3, "num_heads": 4}
    with pytest.raises(ConfigurationError) as refused:
        require_same_sizes(run_of(tmp_path), here)
    said, _, count = str(refused.value).partition("; and ")
    fix = "Leave out model=... and model.*=...: init_from brings its own."
    assert f"another model: a Llama there and a GPT2 here. {fix} Differing: model.num_layers=3, there 2; " in said
    assert said.count(", there ") == 3
    assert count.endswith(" more.")


def test_an_imported_folder_is_held_to_its_class_and_sizes_too(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "import.json").write_text(json.dumps({"settings": LLAMA}))
    require_same_sizes(str(tmp_path), LLAMA | {"num_heads": 4})
    with pytest.raises(ConfigurationError, match=r"model\.num_layers is 2 there and 32 here\. Leave out"):
        require_same_sizes(str(tmp_path), LLAMA | {"num_layers": 32})


def test_another_number_of_parameters_is_refused_but_for_an_adapter_s(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    require_same_parameters(run, LLAMA, SHAPE)
    require_same_parameters(run, LLAMA, replace(SHAPE, num_parameters=110, num_frozen_parameters=100))
    with pytest.raises(ConfigurationError, match=r"another model: 100 parameters there and 110 here\. Leave out"):
        require_same_parameters(run, LLAMA, replace(SHAPE, num_parameters=110))
    adapted = run_of(tmp_path / "b", trained=5)
    with pytest.raises(ConfigurationError, match=r"another model: 95 parameters there and 100 here"):
        require_same_parameters(adapted, LLAMA, SHAPE)
