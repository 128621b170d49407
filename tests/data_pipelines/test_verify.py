"""Damage in prepared data is found."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from data_pipelines.verify import problems
from lmtrain.cli.main import main
from lmtrain.data.manifest import Manifest, manifest_from_json
from lmtrain.data.shard_writer import ShardWriter, write_manifest
from lmtrain.tokenizers.bpe import train_byte_pairs
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.data_pipelines.poems import make

TEXTS = [f"täxt number {number}" for number in range(9)]


def write(folder, *, texts=TEXTS, text_bytes=None, end_of_text_id=None, tokenizer=None, mask=None):
    tokenizer = tokenizer or ByteLevelTokenizer()
    tokenizer.save(folder / "tokenizer")
    end = tokenizer.end_of_text_id if end_of_text_id is None else end_of_text_id
    documents = [[*tokenizer.encode(text), end] for text in texts]
    writer = ShardWriter(folder, split="train", dtype="uint16", shard_tokens=60)
    for ids in documents:
        writer.append(np.array(ids), np.array([len(ids)]), None if mask is None else np.full(len(ids), mask, np.uint8))
    total_bytes = sum(len(text.encode()) for text in texts) if text_bytes is None else text_bytes
    splits = {"train": writer.close(text_bytes=total_bytes)}
    manifest = Manifest("x", "uint16", tokenizer.vocab_size, tokenizer.fingerprint, splits)
    write_manifest(folder, manifest)
    return folder


def manifest_of(folder):
    return manifest_from_json(json.loads((folder / "dataset.json").read_text()))


def found(folder):
    return list(problems(folder))


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_whole_data_set_has_no_problem_and_every_byte_is_read(tmp_path):
    read = []
    assert list(problems(write(tmp_path), advance=read.append)) == []
    assert sum(read) == sum(path.stat().st_size for path in tmp_path.glob("*.ds"))


@pytest.mark.parametrize("position", [0, 17, -2])
def test_a_flipped_bit_is_found(tmp_path, position):
    flip(write(tmp_path) / "train_00001.ds", position)
    assert "train_00001.ds has changed since it was written" in found(tmp_path)[0]


@pytest.mark.parametrize("name", ["train_00001.ds", "train_00000.ds.index"])
def test_a_truncated_file_and_a_missing_one_are_found(tmp_path, name):
    path = write(tmp_path) / name
    path.write_bytes(path.read_bytes()[:-1])
    assert [f"{name} has " in problem and "truncated" in problem for problem in found(tmp_path)] == [True]
    path.unlink()
    assert [f"{name} is missing" in problem for problem in found(tmp_path)] == [True]


@pytest.mark.parametrize("key", ["vocab_size", "name", "splits", "dtype"])
def test_an_edited_manifest_is_found(tmp_path, key):
    path = write(tmp_path) / "dataset.json"
    content = json.loads(path.read_text())
    content[key] = {} if key == "splits" else content[key] * 2
    path.write_text(json.dumps(content))
    problem = found(tmp_path)
    assert len(problem) == 1
    assert "dataset.json was changed or damaged" in problem[0]


def test_ids_of_another_tokenizer_are_found_even_under_a_manifest_that_fits(tmp_path):
    tokenizer = train_byte_pairs(TEXTS, vocab_size=290)
    id_of = {piece: id_ for id_, piece in enumerate(tokenizer.bytes_of_ids()) if len(piece) == 1}
    encode = tokenizer.encode
    tokenizer.encode = lambda text: [id_of[bytes([byte])] for byte in text.encode()]  # without merges
    write(tmp_path, tokenizer=tokenizer)
    assert len(encode(TEXTS[0])) < len(tokenizer.encode(TEXTS[0]))
    assert any("does not encode to its ids again" in problem for problem in found(tmp_path))


def test_documents_without_end_of_text_are_found(tmp_path):
    assert any("does not end with end-of-text" in problem for problem in found(write(tmp_path, end_of_text_id=7)))


@pytest.mark.parametrize("ends", [[5, 5, 60], [5, 4, 60], [5, 9, 10]])
def test_an_index_that_cuts_wrongly_is_found(tmp_path, ends):
    write(tmp_path, texts=["x" * 19] * 3)
    content = np.array(ends, dtype="<u8").tobytes()
    (tmp_path / "train_00000.ds.index").write_bytes(content)
    manifest = manifest_of(tmp_path)
    (shard,) = manifest.splits["train"].shards
    shard = replace(shard, index_sha256=hashlib.sha256(content).hexdigest())
    write_manifest(tmp_path, replace(manifest, splits={"train": replace(manifest.splits["train"], shards=(shard,))}))
    assert ["does not cut train_00000.ds into documents" in problem for problem in found(tmp_path)] == [True]


@pytest.fixture
def folder(tmp_path):
    return make(tmp_path / "data")


def test_each_problem_is_a_line_and_the_exit_code_is_one(folder, capsys):
    (folder / "train_00000.ds").unlink()
    (folder / "extra").write_text("x")
    capsys.readouterr()
    assert main(["verify", str(folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "train_00000.ds is missing" in lines[0]
