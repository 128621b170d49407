import shutil

import pytest
import torch

from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, EnvironmentProblem
from lmtrain.interop.folders import CONFIG, make_folder, read_config_file
from lmtrain.interop.hf_import import fill_from, import_folder, open_hugging_face, open_weights, read_facts, require_fit
from lmtrain.interop.model_settings import build
from tests.interop.hugging_face import saved


@pytest.mark.parametrize(
    ("content", "message", "code"),
    [("{", "is not JSON", 4), ("[]", "is not an object", 4), (None, "is not a folder", 2)],
)
def test_a_damaged_config_is_refused(tmp_path, content, message, code):
    if content is not None:
        (tmp_path / CONFIG).write_text(content)
    with pytest.raises(LMTRAIN_ERRORS, match=message) as refused:
        read_config_file(tmp_path if content else tmp_path / "nowhere")
    assert refused.value.exit_code == code


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
