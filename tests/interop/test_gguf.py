"""A stand-in for llama.cpp's converter: what is driven is its command line; that it converts is its own business."""

from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.interop.gguf import CONVERTER, convert, convert_command, find_converter, require_computed_there

CONVERTS = """
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("model"); parser.add_argument("--outfile"); parser.add_argument("--outtype")
arguments = parser.parse_args()
pathlib.Path(arguments.outfile).write_text(f"GGUF {pathlib.Path(arguments.model).name} {arguments.outtype}")
"""
FAILS = """
import sys, pathlib
pathlib.Path(sys.argv[3]).write_text("half")
sys.exit("NotImplementedError: BPE pre-tokenizer was not recognized")
"""


def converter(folder: Path, text: str = CONVERTS) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / CONVERTER).write_text(text)
    return folder / CONVERTER


def test_the_command_line_wins_over_the_variable_and_the_path(tmp_path):
    for name in ("given", "variable", "path"):
        converter(tmp_path / name).chmod(0o755)
    environment = {"LLAMA_CPP": str(tmp_path / "variable"), "PATH": str(tmp_path / "path")}
    assert find_converter(tmp_path / "given", environment) == tmp_path / "given" / CONVERTER
    assert find_converter(None, environment) == tmp_path / "variable" / CONVERTER
    del environment["LLAMA_CPP"]
    assert find_converter(None, environment) == tmp_path / "path" / CONVERTER
    assert find_converter(None, {"PATH": str(tmp_path)}) is None


@pytest.mark.parametrize(("given", "variable", "name"), [("none", None, "--llama-cpp"), (None, "none", "LLAMA_CPP")])
def test_a_place_without_a_converter_is_refused_by_what_named_it(given, variable, name, tmp_path):
    environment = {} if variable is None else {"LLAMA_CPP": str(tmp_path / variable)}
    with pytest.raises(ConfigurationError, match=f"^{name}=.*holds no {CONVERTER}"):
        find_converter(None if given is None else tmp_path / given, environment)


def test_a_model_that_llama_cpp_computes_otherwise_is_refused():
    for fine in ({"model_type": "gpt2", "activation_function": "gelu_new"}, {"model_type": "llama"}):
        require_computed_there(fine)
    with pytest.raises(
        ConfigurationError, match=r"gelu_approximate=none .*cannot be a GGUF file: .*`lmtrain export hf`"
    ):
        require_computed_there({"model_type": "gpt2", "activation_function": "gelu"})


def test_a_folder_becomes_one_file(tmp_path):
    convert(converter(tmp_path / "llama.cpp"), tmp_path / "hf", tmp_path / "a.gguf", output_type="bf16")
    assert (tmp_path / "a.gguf").read_text() == "GGUF hf bf16"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "llama.cpp"]


def test_what_the_converter_says_is_told_and_nothing_half_written_stays(tmp_path):
    with pytest.raises(EnvironmentProblem, match="BPE pre-tokenizer was not recognized") as refusal:
        convert(converter(tmp_path / "llama.cpp", FAILS), tmp_path / "hf", tmp_path / "a.gguf", output_type="auto")
    assert "ended with exit code 1 " in str(refusal.value)
    assert [path.name for path in tmp_path.iterdir()] == ["llama.cpp"]


def test_the_command_is_one_that_can_be_typed(tmp_path):
    words = convert_command(None, tmp_path / "hf", tmp_path / "a.gguf", output_type="auto")
    assert words == [
        *("python", f"LLAMA_CPP/{CONVERTER}", str(tmp_path / "hf")),
        *("--outfile", str(tmp_path / "a.gguf"), "--outtype", "auto"),
    ]
