import json
from pathlib import Path

import pytest

from lmtrain.cli.main import main
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.loading import load_tokenizer

TEXT = "A line of text to learn from, and another; 12 words or so.\n"
SOURCE = ("source=files", "source.paths=[text.txt]")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Work in a folder with some text and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT * 200)
    ByteLevelTokenizer(vocab_size=300).save(tmp_path / "bytes")


def test_a_tokenizer_is_learned_saved_and_compared(capsys):
    assert main(["tokenizer", *SOURCE, "tokenizer.vocab_size=280", "compare=[bytes]"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("280 entries: 269 for text, 11 special tokens")
    assert lines[2].split() == ["bytes", "per", "token", "this", "bytes"]
    assert lines[3].split() == ["entries", "280", "300"]
    assert [line.split("  ")[0] for line in lines[4:10]] == [
        "prose", "code", "numbers", "other languages", "whitespace", "held-out text",
    ]  # fmt: skip
    folder = lines[-2].removeprefix("saved: ")
    assert lines[-1] == f"use it: tokenizer=folder tokenizer.path={folder}"
    assert load_tokenizer(folder).vocab_size == 280


def test_json_is_one_object_and_nothing_else(capsys):
    assert main(["tokenizer", "--json", *SOURCE, "tokenizer.vocab_size=1000", "folder=mine"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["folder"] == "mine"
    assert report["vocab_size"] == 1000
    assert report["num_used"] + report["num_unused"] + len(report["special_tokens"]) == 1000
    assert set(report["bytes_per_token"]["prose"]) == {"this"}
    assert Path("mine/tokenizer.json").is_file()


def test_a_tokenizer_that_exists_is_reported_and_not_copied(capsys):
    assert main(["tokenizer", *SOURCE, "tokenizer=huggingface", "tokenizer.name=bytes"]) == 0
    assert "saved" not in capsys.readouterr().out
    assert not Path("tokenizers").exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["tokenizer.vocab_size=266"], 2, "nearest valid: 267"),
        (["tokenizer=huggingface"], 2, "tokenizer.name has no value"),
        (["tokenizer=huggingface", "tokenizer.name=./no"], 4, "tokenizer.name=./no does not exist here"),
        (["tokenizer=folder", "tokenizer.path=bytes", "tokenizer.vocab_size=5"], 2, "valid: 300."),
        (["tokenizer.special_tokens=[]"], 2, "tokenizer.special_tokens=[] has none that ends a document"),
        (["compare=./no"], 4, "compare=./no does not exist here"),
        (["source.paths=[none.txt]"], 4, "none.txt"),
        (["bogus=1"], 2, "unknown key bogus"),
        (["held_out_bytes=many"], 2, "held_out_bytes"),
    ],
)
def test_wrong_words_are_refused_in_one_line(words, code, message, capsys):
    assert main(["tokenizer", *SOURCE, *words]) == code
    printed = capsys.readouterr()
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""


def test_help_lists_the_options(capsys):
    assert main(["tokenizer", "--help"]) == 0
    page = capsys.readouterr().out
    assert "huggingface" in page
    assert main(["tokenizer", "--help", "keys"]) == 0
    assert "compare=[]" in capsys.readouterr().out
