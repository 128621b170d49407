import shutil
from pathlib import Path

import pytest
import torch

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.interop.hf_import import read_facts
from lmtrain.interop.model_settings import build
from lmtrain.run.stored_runs.identity import fingerprint_of
from lmtrain.run.stored_runs.initial_weights import find_weights
from lmtrain.storage.hashed_folder import write_atomically
from tests.interop.hugging_face import imported, saved, tokens
from tests.run.stored_runs.test_find_run import run_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("import")
    saved("llama", root / "hf")
    imported(root / "hf", root / "in")
    return root / "in"


def test_an_imported_folder_fills_the_model(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = build(read_facts(folder)["settings"])
    fill = find_weights(str(folder), model)
    model.to_empty(device="cpu").initialize_weights(torch.Generator().manual_seed(0))
    theirs = AutoModelForCausalLM.from_pretrained(folder.parent / "hf")
    torch.testing.assert_close(fill(model)(tokens()), theirs(tokens()).logits, atol=2e-5, rtol=1e-4)


def test_the_fingerprint_follows_the_content_and_not_the_place(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    assert fingerprint_of(str(tmp_path / "copy")) == fingerprint_of(str(folder))


def test_another_model_is_refused_while_it_is_on_the_meta_device(folder: Path) -> None:
    model = build(read_facts(folder)["settings"] | {"num_layers": 3})
    with pytest.raises(ConfigurationError, match=r"init_from=.* is another model: layers\.2\..* is missing there"):
        find_weights(str(folder), model)


def test_a_changed_byte_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    weights = tmp_path / "copy" / "weights" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(EnvironmentProblem, match="has changed since it was written"):
        find_weights(str(tmp_path / "copy"), build(read_facts(folder)["settings"]))


def test_a_checkpoint_of_a_run_fills_the_model(folder: Path, tmp_path: Path) -> None:
    trained = build(read_facts(folder)["settings"]).to_empty(device="cpu")
    trained.initialize_weights(torch.Generator().manual_seed(5))
    state = {f"language_model.{name}": tensor for name, tensor in trained.state_dict().items()}
    run = run_folder(tmp_path / "a")
    write_atomically(
        run / "checkpoints" / "step_00000007",
        facts={"step": 7, "tokens": 70, "identity": {}},
        write=lambda aside: torch.save({"state_dict": state}, aside / "state.pt"),
    )
    model = build(read_facts(folder)["settings"])
    fill = find_weights(str(run), model)
    other = build(read_facts(folder)["settings"] | {"feed_forward_width": 40})
    with pytest.raises(ConfigurationError, match=r"init_from=.*a is another model: .*Give init_from=.*a alone"):
        find_weights(str(run), other)
    model.to_empty(device="cpu").initialize_weights(torch.Generator().manual_seed(0))
    assert torch.equal(fill(model)(tokens()), trained(tokens()))
    assert fingerprint_of(str(run)) == fingerprint_of(str(run / "checkpoints" / "step_00000007"))
