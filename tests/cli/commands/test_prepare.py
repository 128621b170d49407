"""Commands of data: tokenizer, verify, and the documents of a past step."""

import json
from pathlib import Path

import pytest

from lmtrain.cli.commands.data import documents_table
from lmtrain.cli.main import main
from lmtrain.report.show import plain_text
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


ONE = {
    "sequence": 3, "rank": 1, "micro_step": 2, "row": 12_345, "num_tokens": 7, "nats_per_token": 2.5,
    "worst": "a\tb\x1b[31m", "text": "first\nsecond", "source": None,
}  # fmt: skip


def test_a_line_a_document_without_control_characters_of_its_text() -> None:
    page = plain_text(documents_table([ONE]))
    assert "12,345" in page
    assert "2.500" in page
    assert r"a\tb\x1b[31m" in page
