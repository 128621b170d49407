import numpy as np
import pytest

from lmtrain.data.formats import datatrove, megatron
from lmtrain.errors import DataError
from lmtrain.tokenizers.bpe import train_byte_pairs

TEXTS = [f"Document {number} has a text of its own: {number**3}." for number in range(20)]


def ends_of(file):
    assert file.read_ends is not None
    return file.read_ends()


def write(path, *, ids=(1, 2, 9, 3, 9), ends=(3, 5), dtype="<u2", metadata="some/tokenizer|2\n5\n5 T"):
    path.write_bytes(np.array(ids, dtype).tobytes())
    path.with_name(f"{path.name}.index").write_bytes(np.array(ends, "<u8").tobytes())
    if metadata:
        path.with_name(f"{path.name}.metadata").write_text(metadata)
    return path


@pytest.mark.parametrize(
    ("how", "vocab_size", "dtype"),
    [
        ({}, 300, "uint16"),
        ({"metadata": None}, 300, "uint16"),
        ({"metadata": None, "dtype": "<u4"}, 70_000, "uint32"),
        ({"metadata": "t|4\n5\n5 T", "dtype": "<u4"}, 300, "uint32"),
    ],
)
def test_the_type_is_what_the_metadata_tells_else_what_the_vocabulary_takes(tmp_path, how, vocab_size, dtype):
    file = datatrove.read(write(tmp_path / "a.ds", **how), dtype=None, vocab_size=vocab_size)
    assert (file.dtype, file.ids().tolist()) == (dtype, [1, 2, 9, 3, 9])
    assert ends_of(file).tolist() == [3, 5]


def test_an_index_of_other_ids_is_refused(tmp_path):
    file = datatrove.read(write(tmp_path / "a.ds", ends=[3, 7]), dtype=None, vocab_size=300)
    with pytest.raises(DataError, match=r"a\.ds\.index ends at 7, .*a\.ds has 5 ids of uint16: another type"):
        ends_of(file)
    with pytest.raises(DataError, match=r"data\.folder\.dtype=uint32 differs from .*metadata: uint16"):
        datatrove.read(tmp_path / "a.ds", dtype="uint32", vocab_size=300)
    (tmp_path / "a.ds.index").unlink()
    with pytest.raises(DataError, match=r"a\.ds\.index does not exist"):
        datatrove.read(tmp_path / "a.ds", dtype=None, vocab_size=300)


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
    file = datatrove.read(path, dtype=None, vocab_size=300)
    assert split(file.ids(), ends_of(file)) == expected(tokenizer_path)


@pytest.mark.filterwarnings("ignore")
def test_what_datatroves_megatron_stage_writes_is_read(tmp_path, tokenizer_path):
    module = pytest.importorskip("datatrove.pipeline.tokens.megatron_tokenizer")
    stage = module.MegatronDocumentTokenizer(
        output_folder=str(tmp_path), tokenizer_name_or_path=str(tokenizer_path), eos_token="<|end_of_text|>"
    )
    stage.run(documents(), rank=0, world_size=1)
    (path,) = tmp_path.glob("*.bin")
    file = megatron.read(path, dtype=None, vocab_size=300)
    assert split(file.ids(), ends_of(file)) == expected(tokenizer_path)
