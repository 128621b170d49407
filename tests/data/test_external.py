"""Token files of other programs are read in place, and refused where they are not of their format."""

import json
import struct

import numpy as np
import pytest

from lmtrain.data.external import external
from lmtrain.data.external_formats import read_datatrove, read_llm_c, read_megatron, read_nanogpt, read_olmo
from lmtrain.data.packing import BestFit, Contiguous, OneDocument, Packing
from lmtrain.data.packing_index import ends_of_shards
from lmtrain.data.shards import open_dataset
from lmtrain.errors import DataError
from lmtrain.tokenizers.bpe import train_byte_pairs
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

END = 256
IDS = [*b"first", END, *"sécond".encode(), END, *b"third"]


class Existing:
    """A tokenizer that needs no text."""

    sample_bytes = 0

    def build(self, texts):
        assert not texts
        return ByteLevelTokenizer()


def nanogpt(path, ids=IDS, dtype="<u2"):
    path.write_bytes(np.array(ids, dtype).tobytes())
    return str(path)


def point(tmp_path, **settings):
    settings = settings if "train" in settings else {**settings, "train": [nanogpt(tmp_path / "train.bin")]}
    asked = {"format": "nanogpt", "root": str(tmp_path / "data")}
    return external(**{**asked, "tokenizer": Existing(), **settings})


def test_ids_stay_where_they_are_and_read_as_any_data_set(tmp_path):
    folder = point(tmp_path, validation=[nanogpt(tmp_path / "val.bin", [*b"held out", END])])
    dataset = open_dataset(folder)
    train = dataset.split("train")
    assert train.window(0, train.num_tokens).tolist() == IDS
    assert np.concatenate([*ends_of_shards(train)]).tolist() == [6, 14, 19]  # the last one has no end-of-text
    assert (train.num_documents, train.text_bytes) == (3, 17)
    assert dataset.split("validation").window(0, 9).tolist() == [*b"held out", END]
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in (".ds", ".bin")) == 0


def test_the_fingerprint_is_of_the_tokens_not_of_the_place(tmp_path):
    (tmp_path / "moved").mkdir()
    here, there = point(tmp_path), point(tmp_path / "moved")
    assert open_dataset(here).manifest.fingerprint == open_dataset(there).manifest.fingerprint
    files = [
        json.loads((at / "dataset.json").read_text())["splits"]["train"]["shards"][0]["file"] for at in (here, there)
    ]
    assert files == [str(tmp_path / "train.bin"), str(tmp_path / "moved" / "train.bin")]


def test_ids_that_the_tokenizer_lacks_are_refused_and_leave_nothing(tmp_path):
    with pytest.raises(DataError, match=r"train\.bin holds id 300, beyond .* 257 entries"):
        point(tmp_path, train=[nanogpt(tmp_path / "train.bin", [1, 300])])
    with pytest.raises(DataError, match=r"nowhere\.bin does not exist"):
        point(tmp_path, train=["nowhere.bin"])
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("packing", [BestFit(), OneDocument(), Contiguous(document_mask=True)])
@pytest.mark.parametrize("last", [END, ord(" ")])
def test_rows_of_whole_documents_need_the_tokenizers_end_of_text(tmp_path, packing: Packing, last: int):
    ends = np.cumsum([5] * 8)
    ids = [1, 2, 3, 4, last] * 8
    nanogpt(tmp_path / "train.ds", ids)
    (tmp_path / "train.ds.index").write_bytes(ends.astype("<u8").tobytes())
    dataset = open_dataset(point(tmp_path, format="datatrove", train=[str(tmp_path / "train.ds")]))
    for _ in range(2):  # also from an index that is there
        if last == END:
            assert packing.rows(dataset, context_tokens=10).num_rows
        else:
            refused = pytest.raises(DataError, match=r"end with id 32, but the tokenizer's end-of-text is 256")
            with refused:
                packing.rows(dataset, context_tokens=10)
            if isinstance(packing, Contiguous):
                with refused:
                    packing.held_out(dataset, "train", context_tokens=10, max_tokens=None)


TEXTS = [f"Document {number} has a text of its own: {number**3}." for number in range(20)]


def ends_of(file):
    assert file.read_ends is not None
    return file.read_ends()


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_byte_pairs(TEXTS, vocab_size=300).save(folder)
    return folder / "tokenizer.json"


def documents():
    from datatrove.data import Document  # pyright: ignore[reportMissingImports]  # an extra

    return [Document(text=text, id=f"{number}") for number, text in enumerate(TEXTS)]


def expected(tokenizer_path):
    from lmtrain.tokenizers.loading import load_tokenizer

    tokenizer = load_tokenizer(tokenizer_path.parent)
    return [[*tokenizer.encode(text), tokenizer.end_of_text_id] for text in TEXTS]


def split(ids, ends):
    return [part.tolist() for part in np.split(ids, ends[:-1])]


@pytest.mark.filterwarnings("ignore")
def test_what_datatroves_own_stage_writes_is_read(tmp_path, tokenizer_path):
    tokens = pytest.importorskip("datatrove.pipeline.tokens")
    stage = tokens.DocumentTokenizer(
        output_folder=str(tmp_path),
        tokenizer_name_or_path=str(tokenizer_path),
        eos_token="<|end_of_text|>",
        shuffle_documents=False,
    )
    stage.run(documents(), rank=0, world_size=1)
    (path,) = tmp_path.glob("*.ds")
    file = read_datatrove(path, dtype=None, vocab_size=300)
    assert split(file.ids(), ends_of(file)) == expected(tokenizer_path)


@pytest.mark.filterwarnings("ignore")
def test_what_datatroves_megatron_stage_writes_is_read(tmp_path, tokenizer_path):
    module = pytest.importorskip("datatrove.pipeline.tokens.megatron_tokenizer")
    stage = module.MegatronDocumentTokenizer(
        output_folder=str(tmp_path), tokenizer_name_or_path=str(tokenizer_path), eos_token="<|end_of_text|>"
    )
    stage.run(documents(), rank=0, world_size=1)
    (path,) = tmp_path.glob("*.bin")
    file = read_megatron(path, dtype=None, vocab_size=300)
    assert split(file.ids(), ends_of(file)) == expected(tokenizer_path)


def write_llm_c(path, *, magic=20240520, version=1, ids=(50256, 1, 2), dtype="<u2", num_ids=None):
    header = np.zeros(256, dtype="<i4")
    header[:3] = [magic, version, len(ids) if num_ids is None else num_ids]
    path.write_bytes(header.tobytes() + np.array(ids, dtype).tobytes())
    return path


@pytest.mark.parametrize(
    ("how", "dtype"),
    [
        ({}, "uint16"),
        ({"magic": 20240801, "version": 7, "ids": [128000, 5], "dtype": "<u4"}, "uint32"),
    ],
)
def test_each_kind_of_header_is_read(tmp_path, how, dtype):
    file = read_llm_c(write_llm_c(tmp_path / "a.bin", **how), dtype=None, vocab_size=200_000)
    assert (file.dtype, file.offset_bytes) == (dtype, 1024)
    assert file.ids().tolist() == list(how.get("ids", (50256, 1, 2)))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"magic": 7}, r"begins with 7, 1, not as llm\.c \(20240520, .*nanogpt has no header"),
        ({"version": 2}, r"begins with 20240520, 2, not as"),
        ({"num_ids": 4}, r"has 1,030 bytes, its header declares 4 ids: 1,032 bytes"),
        ({"num_ids": 2}, r"its header declares 2 ids: 1,028 bytes"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path, how, message):
    with pytest.raises(DataError, match=message):
        read_llm_c(write_llm_c(tmp_path / "a.bin", **how), dtype=None, vocab_size=200_000)


SEQUENCES = [[1, 2, 3], [4], [5, 6]]


def write_megatron(stem, *, code=8):
    dtype = {8: "<u2", 4: "<i4"}[code]
    lengths = np.array([len(ids) for ids in SEQUENCES], "<i4")
    offsets = (np.cumsum(lengths) - lengths) * np.dtype(dtype).itemsize
    starts = np.array([0, 1, 3], "<i8")
    stem.with_suffix(".bin").write_bytes(np.concatenate(SEQUENCES).astype(dtype).tobytes())
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(starts))
    arrays = lengths.tobytes() + offsets.astype("<i8").tobytes() + starts.tobytes()
    stem.with_suffix(".idx").write_bytes(header + arrays)
    return stem


@pytest.mark.parametrize(("code", "dtype"), [(8, "uint16"), (4, "uint32")])
@pytest.mark.parametrize("suffix", ["", ".bin", ".idx"])
def test_a_pair_is_read_by_any_of_its_names(tmp_path, code, dtype, suffix):
    write_megatron(tmp_path / "text_document", code=code)
    file = read_megatron(tmp_path / f"text_document{suffix}", dtype=None, vocab_size=300)
    assert file.dtype == dtype
    assert file.ids().tolist() == [1, 2, 3, 4, 5, 6]
    assert ends_of(file).tolist() == [3, 6]  # the second document has two sequences


def test_ids_and_index_that_do_not_belong_together_are_refused(tmp_path):
    stem = write_megatron(tmp_path / "x")
    stem.with_suffix(".bin").write_bytes(b"\0" * 10)
    with pytest.raises(DataError, match=r"x\.bin has 10 bytes, its index declares 6 ids of 2"):
        read_megatron(stem, dtype=None, vocab_size=300)
    stem.with_suffix(".idx").write_bytes(write_megatron(tmp_path / "y").with_suffix(".idx").read_bytes()[:-20])
    with pytest.raises(DataError, match=r"x\.idx has .* bytes instead of .* \(3 sequences\): cut off"):
        read_megatron(stem, dtype=None, vocab_size=300)
    stem.with_suffix(".idx").unlink()
    with pytest.raises(DataError, match=r"x\.idx does not exist"):
        read_megatron(stem, dtype=None, vocab_size=300)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(50280, "uint16"), (100_278, "uint32")])
def test_the_type_follows_the_vocabulary(tmp_path, vocab_size, dtype):
    path = tmp_path / "part-0.npy"
    written = np.memmap(path, dtype=dtype, mode="w+", shape=(3,))
    written[:] = [7, 8, vocab_size - 1]
    written.flush()
    file = read_olmo(path, dtype=None, vocab_size=vocab_size)
    assert file.dtype == dtype
    assert file.ids().tolist() == [7, 8, vocab_size - 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"123", r"has 3 bytes, not a multiple of a uint16 id"),
        (b"\x93NUMPY\1\0", r"saved by numpy: write its ids with tofile"),
    ],
)
def test_what_cannot_be_ids_is_refused(tmp_path, content, message):
    (tmp_path / "ids").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_nanogpt(tmp_path / "ids", dtype=None, vocab_size=300)
