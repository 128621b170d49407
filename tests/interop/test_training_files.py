import yaml

from lmtrain.interop.model_settings import node_of
from lmtrain.interop.training_files import training_command, write_training_files
from lmtrain.models.llama import Llama
from lmtrain.models.rope import LinearRopeScaling
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

SETTINGS = node_of(
    Llama, width=8, norm_eps=1e-6, rope_base=1e20, qk_norm=True, head_width=None,
    rope_scaling=node_of(LinearRopeScaling, factor=2.0),
)  # fmt: skip


def test_settings_come_back_from_the_model_option(tmp_path):
    write_training_files(tmp_path, tmp_path, settings=SETTINGS, tokenizer=None, source="a")
    text = (tmp_path / "model" / "imported.yaml").read_text()
    assert text.startswith("# a, as `lmtrain import` took it\n")
    assert yaml.safe_load(text) == {**SETTINGS, "attention": "${attention}"}


def test_the_experiment_names_the_folder_by_its_final_place(tmp_path):
    final = tmp_path / "it's: here"
    write_training_files(tmp_path, final, settings=SETTINGS, tokenizer=ByteLevelTokenizer(vocab_size=300), source="a")
    experiment = yaml.safe_load((tmp_path / "experiment" / "imported.yaml").read_text())
    assert experiment["init_from"] == str(final)
    assert experiment["tokenizer"] == {"path": f"{final}/tokenizer", "vocab_size": 300}
    assert {"override /model": "imported"} in experiment["defaults"]


def test_the_command_is_short(tmp_path):
    assert training_command(tmp_path) == f"python train.py init_from={tmp_path}"
