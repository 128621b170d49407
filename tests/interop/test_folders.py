import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, EnvironmentProblem
from lmtrain.interop.folders import CONFIG, find_folder, make_folder, read_config_file
from lmtrain.interop.hf_import import fill_from, import_folder, open_hugging_face, open_weights, read_facts, require_fit
from lmtrain.interop.model_settings import build
from tests.interop.hugging_face import saved


@pytest.mark.parametrize(
    ("content", "message", "code"),
    [("{", "is damaged", 4), (None, "is not a folder", 2)],
)
def test_a_damaged_config_is_refused(tmp_path, content, message, code):
    if content is not None:
        (tmp_path / CONFIG).write_text(content)
    with pytest.raises(LMTRAIN_ERRORS, match=message) as refused:
        read_config_file(tmp_path if content else tmp_path / "nowhere")
    assert refused.value.exit_code == code


ANSWER: Any = SimpleNamespace(status_code=403, headers={}, request=None)


@pytest.mark.parametrize(
    ("problem", "error", "message"),
    [
        (GatedRepoError("403", response=ANSWER), EnvironmentProblem, "needs its licence accepted: .*`hf auth login`"),
        (RepositoryNotFoundError("404", response=ANSWER), ConfigurationError, "neither a folder here nor a model on"),
        (HfHubHTTPError("500", response=ANSWER), EnvironmentProblem, "cannot be reached; go online once"),
        (OSError("reset"), EnvironmentProblem, "cannot be reached; go online once"),
    ],
)
def test_each_refusal_of_the_hub_has_its_own_message(monkeypatch, problem, error, message):
    def refuse(*_, **__):
        raise problem

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(error, match=f"FOLDER=someone/model .*{message}"):
        find_folder(Path("someone/model"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("import")
    saved("qwen3", root / "hf", dtype=torch.bfloat16)
    import_folder(open_hugging_face(root / "hf"), root / "out")
    return root / "out"


def test_weights_are_read_into_the_dtype_of_the_model(folder):
    model = build(read_facts(folder)["settings"]).to_empty(device="cpu")
    fill_from(model, open_weights(folder))
    filled = model.get_parameter("layers.1.self_attention.qkv.weight")
    stored = open_weights(folder).read("layers.1.self_attention.qkv.weight")
    assert (stored.dtype, filled.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(filled, stored.float())


def test_another_model_and_damage_are_refused(folder, tmp_path):
    settings = read_facts(folder)["settings"] | {"feed_forward_width": 40, "qk_norm": False}
    with pytest.raises(ConfigurationError, match=r"init_from=.*out is another model: .*\(differing tensors: 8\)"):
        require_fit(build(settings), open_weights(folder))
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "import.json").write_text("{}")
    with pytest.raises(EnvironmentProblem, match=r"import\.json"):
        read_facts(tmp_path / "copy")


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_folder_is_whole_or_absent_and_never_overwritten(failure, tmp_path):
    def write(folder):
        (folder / "half").write_text("x")
        raise failure

    with pytest.raises(failure):
        make_folder(tmp_path / "out", write)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"OUT=.*out is there already"):
        make_folder(tmp_path / "out", lambda folder: None)
