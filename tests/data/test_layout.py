import pytest

from lmtrain.data.layout import narrowest_dtype, num_ids, shard_file, size_problems
from lmtrain.data.manifest import Manifest, Shard, SplitManifest
from lmtrain.errors import ConfigurationError


@pytest.mark.parametrize(("vocab_size", "dtype"), [(257, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_ids_take_two_bytes_up_to_65536_entries(vocab_size, dtype):
    assert narrowest_dtype(vocab_size) == dtype
    assert num_ids(dtype) >= vocab_size


def test_a_vocabulary_beyond_four_bytes_is_refused():
    with pytest.raises(ConfigurationError, match=r"tokenizer\.vocab_size=4294967297 .* at most 4,294,967,296"):
        narrowest_dtype(2**32 + 1)


def test_every_file_of_another_size_is_named(tmp_path):
    shards = tuple(Shard(shard_file("train", number), 3, 1, "s", "i") for number in range(2))
    manifest = Manifest("x", "uint16", 300, "f", {"train": SplitManifest(2, 6, 1, shards)})
    (tmp_path / "train_00000.ds").write_bytes(b"12345")
    (tmp_path / "train_00000.ds.index").write_bytes(b"12345678")
    (tmp_path / "train_00001.ds.index").write_bytes(b"")
    found = list(size_problems(tmp_path, manifest))
    assert [problem.split(tmp_path.name)[1].split(" ")[0] for problem in found] == [
        "/train_00000.ds", "/train_00001.ds", "/train_00001.ds.index"
    ]  # fmt: skip
    assert "5 bytes instead of 6 (3 tokens of uint16)" in found[0]
