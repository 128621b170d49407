import json
import shlex
from pathlib import Path

import pytest

from lmtrain.cli.commands.import_hf import context_words, import_model
from lmtrain.errors import ConfigurationError, DataError
from tests.interop.hugging_face import change_config, saved


def test_the_command_to_go_on_with_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved("qwen3", tmp_path / "hf")
    change_config(tmp_path / "hf", rotate_twice=True)
    assert import_model(["hf", str(tmp_path / "hf"), str(tmp_path / "my base")]) == 0
    printed = capsys.readouterr()
    (line,) = [line for line in printed.out.splitlines() if "lmtrain train" in line]
    context = ["batch.context_tokens=64", "batch.tokens_per_step=2048"]
    words = [f"init_from={tmp_path / 'my base'}", *context, "source=files", "source.paths=[my/notes]"]
    assert shlex.split(line)[2:-1] == words, "as a shell reads it"
    assert "qwen3, 40,160 parameters" in printed.out
    assert "config.json: rotate_twice is not known here and not used" in printed.err


def test_one_json_object_is_printed_where_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved("gpt2", tmp_path / "hf", tokenizer=False)
    words = [
        "hf",
        str(tmp_path / "hf"),
        str(tmp_path / "in"),
        "--json",
        "--without-tokenizer",
        "--max-shard-bytes",
        "20KB",
    ]
    assert import_model(words) == 0
    told = json.loads(capsys.readouterr().out)
    most = json.loads((tmp_path / "in" / "import.json").read_text())["settings"]["max_context_tokens"]
    words = f"batch.context_tokens={most} batch.tokens_per_step={2048 // most * most}"
    assert told["command"] == f"lmtrain train init_from={tmp_path / 'in'} {words}"
    assert context_words(8192) == []
    assert len(list((tmp_path / "in" / "weights").glob("*.safetensors"))) > 1


def test_a_bad_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    with pytest.raises(DataError, match=r"has no config\.json"):
        import_model(["hf", str(tmp_path / "hf"), str(tmp_path / "in")])


@pytest.mark.parametrize("words", [[], ["pt", "a", "b"], ["hf", "a"]])
def test_a_wrong_command_line_is_a_line_and_exit_code_2(words: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"`lmtrain import( hf)? --help` lists the flags\.$"):
        import_model(words)


def test_a_truncated_file_is_one_line_and_exit_code_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lmtrain.cli.main import main

    saved("llama", tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    capsys.readouterr()
    assert main(["import", "hf", str(tmp_path / "hf"), str(tmp_path / "in")]) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith(f"lmtrain: {file} is damaged or not a safetensors file ")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
