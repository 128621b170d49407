import os
from pathlib import Path

import numpy as np
import pytest

from lmtrain.data import checked_shards
from lmtrain.data.checked_shards import BackgroundCheck, require_whole
from lmtrain.data.manifest import Manifest
from lmtrain.data.shard_writer import ShardWriter, write_manifest
from lmtrain.data.shards import Dataset, open_dataset
from lmtrain.errors import DataError

IDS = np.arange(12) % 10
FILES = ["train_00000.ds", "train_00001.ds", "train_00000.ds.index"]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Two shards of six ids."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    writer = ShardWriter(folder, split="train", dtype="uint16", shard_tokens=6)
    writer.append(IDS, np.array([6, 12]))
    splits = {"train": writer.close(text_bytes=12)}
    write_manifest(
        folder, Manifest(name="t", dtype="uint16", vocab_size=10, tokenizer_fingerprint="f" * 64, splits=splits)
    )
    return open_dataset(folder)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("was_checked", [False, True])
def test_one_flipped_bit_is_an_error_of_the_data(dataset: Dataset, name: str, was_checked: bool) -> None:
    if was_checked:
        require_whole(dataset)
    flip_a_bit(dataset.folder / name)
    for _ in range(2):  # and stays one
        with pytest.raises(DataError, match=rf"{name} is damaged: its sha256"):
            require_whole(dataset)


def test_a_file_is_read_once_for_as_long_as_it_stays_the_same(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(
        checked_shards, "file_sha256", lambda path, hash_of=checked_shards.file_sha256: read.append(path.name) or hash_of(path)
    )
    require_whole(dataset)
    assert len(read) == 4
    require_whole(dataset)
    assert len(read) == 4
    os.utime(dataset.folder / FILES[1], ns=(1, 1))
    require_whole(dataset)
    assert read[4:] == [FILES[1]]


def test_a_folder_that_cannot_remember_is_read_each_time(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    require_whole(dataset)
    flip_a_bit(dataset.folder / FILES[0])
    with pytest.raises(DataError):
        require_whole(dataset)


def test_the_background_tells_when_it_is_asked(dataset: Dataset) -> None:
    BackgroundCheck([dataset]).require_whole()
    (dataset.folder / FILES[1]).unlink()
    check = BackgroundCheck([dataset])
    with pytest.raises(DataError, match=r"train_00001\.ds cannot be read: No such file"):
        check.require_whole()
