"""The reference is the safetensors library: what it writes is read here, and the other way round."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmtrain.errors import DataError
from lmtrain.interop.safetensors_files import TensorToWrite, WeightFiles, write_shards
from tests.full_disk import files_of_at_most

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16), "c": torch.zeros(3, 1)}


def to_write():
    return [TensorToWrite(name, tensor.nbytes, tensor.clone) for name, tensor in TENSORS.items()]


@pytest.mark.parametrize(("max_shard_bytes", "num_files"), [(1000, 1), (40, 2), (1, 3)])
def test_what_is_written_is_read_whatever_the_shards(max_shard_bytes, num_files, tmp_path):
    (tmp_path / "by_us").touch()
    write_shards(tmp_path, to_write(), max_shard_bytes=max_shard_bytes)
    written = [*tmp_path.glob("*.safetensors")]
    assert len(written) == num_files
    files = WeightFiles(tmp_path)
    assert all(torch.equal(files.read(name), tensor) for name, tensor in TENSORS.items())
    assert all(file.stat().st_mode == (tmp_path / "by_us").stat().st_mode for file in written)
    library = {name: tensor for file in written for name, tensor in load_file(file).items()}
    assert library.keys() == TENSORS.keys()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content + b"x",
        lambda content: content[:8] + b"?" + content[9:],
        lambda content: content.replace(b'"shape":[2,3]', b'"shape":[9,3]'),
        lambda content: (1 << 40).to_bytes(8, "little") + content[8:],
        lambda content: content[:8] + b"[" * (len(content) - 8),
    ],
)
def test_a_damaged_file_is_refused(damage, tmp_path):
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, file)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match="is damaged or not a safetensors file"):
        WeightFiles(tmp_path)


@pytest.mark.parametrize(
    "text", ["{", '{"weight_map": 3}', "{}", '{"weight_map": {"a": 3}}', '{"weight_map": {"a": "../b.safetensors"}}']
)
def test_a_damaged_index_is_refused(text, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(DataError, match=r"index\.json is damaged"):
        WeightFiles(tmp_path)


def test_a_full_disk_is_an_error_of_the_system(tmp_path):
    with files_of_at_most(1000), pytest.raises(OSError, match=r"too large|space|quota"):
        write_shards(tmp_path, [TensorToWrite("a", 8000, lambda: torch.zeros(2000))], max_shard_bytes=10_000)


def test_a_tensor_in_two_shards_is_refused_whatever_the_index_says(tmp_path):
    write_shards(tmp_path, to_write(), max_shard_bytes=1)
    files = sorted(tmp_path.glob("*.safetensors"))
    save_file({"c": TENSORS["c"], "a": torch.zeros(2, 3)}, files[2])
    with pytest.raises(DataError, match=r"^a is in .*00001-of-00003\.safetensors and in .*00003-of-00003"):
        WeightFiles(tmp_path)
