import pytest
import torch

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.interop.hf_import import import_folder, open_hugging_face
from lmtrain.interop.imported import fill_from, open_weights, read_facts, require_fit
from lmtrain.interop.imported_folder import is_imported
from lmtrain.interop.model_settings import build
from tests.interop.hugging_face import saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("import")
    saved("qwen3", root / "hf", dtype=torch.bfloat16)
    import_folder(open_hugging_face(root / "hf"), root / "out")
    return root / "out"


def test_an_imported_folder_is_told_from_others(folder):
    assert is_imported(folder)
    assert not is_imported(folder.parent / "hf")


def test_weights_are_read_into_the_dtype_of_the_model(folder):
    model = build(read_facts(folder)["settings"]).to_empty(device="cpu")
    fill_from(model, open_weights(folder))
    filled = model.get_parameter("layers.1.self_attention.qkv.weight")
    stored = open_weights(folder).read("layers.1.self_attention.qkv.weight")
    assert (stored.dtype, filled.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(filled, stored.float())


def test_another_model_is_refused_before_anything_is_read(folder):
    settings = read_facts(folder)["settings"] | {"feed_forward_width": 40, "qk_norm": False}
    with pytest.raises(ConfigurationError, match=r"init_from=.*out is another model: .*\(differing tensors: 8\)"):
        require_fit(build(settings), open_weights(folder))


def test_damage_is_seen(folder, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "import.json").write_text("{}")
    with pytest.raises(EnvironmentProblem, match=r"import\.json"):
        read_facts(copy)
