import json

import numpy as np
import pytest

from lmtrain.data.cache import cached_folder
from lmtrain.data.external import external
from lmtrain.data.packing import BestFit, Contiguous, OneDocument, Packing
from lmtrain.data.shards import open_dataset
from lmtrain.errors import ConfigurationError, DataError
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
    assert train.document_ends().tolist() == [6, 14, 19]  # the last one has no end-of-text
    assert (train.num_documents, train.text_bytes) == (3, 17)
    assert dataset.split("validation").window(0, 9).tolist() == [*b"held out", END]
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in (".ds", ".bin")) == 0


def test_several_files_are_one_row(tmp_path):
    files = [nanogpt(tmp_path / f"{number}.bin", [number] * 4 + [END]) for number in range(3)]
    train = open_dataset(point(tmp_path, train=files)).split("train")
    assert train.window(3, 9).tolist() == [0, END, 1, 1, 1, 1, END, 2, 2]
    assert train.windows(np.array([4, 9]), 3).tolist() == [[END, 1, 1], [END, 2, 2]]


def test_a_header_is_skipped(tmp_path):
    header = np.zeros(256, "<i4")
    header[:3] = [20240520, 1, len(IDS)]
    (tmp_path / "a.bin").write_bytes(header.tobytes() + np.array(IDS, "<u2").tobytes())
    train = open_dataset(point(tmp_path, format="llm_c", train=[str(tmp_path / "a.bin")])).split("train")
    assert train.window(0, len(IDS)).tolist() == IDS


def test_a_cache_holds_the_ends_of_documents_alone(tmp_path):
    nanogpt(tmp_path / "train.bin")
    folder = point(tmp_path, train=[str(tmp_path / "train.bin")])
    copy = cached_folder(folder, str(tmp_path / "cache"))
    assert sorted(path.name for path in copy.glob("train*")) == ["train_00000.index"]
    assert open_dataset(copy).split("train").window(0, len(IDS)).tolist() == IDS


def test_the_second_time_nothing_is_read(tmp_path, capsys):
    folder = point(tmp_path)
    before = (folder / "dataset.json").stat().st_mtime_ns
    assert "reading" in capsys.readouterr().err
    asked = {"format": "nanogpt", "train": [str(tmp_path / "train.bin")], "root": str(tmp_path / "data")}
    assert external(**asked, tokenizer=Existing()) == folder
    assert (folder / "dataset.json").stat().st_mtime_ns == before
    assert capsys.readouterr().err == ""


def test_a_file_that_changed_is_another_data_set(tmp_path):
    folder = point(tmp_path)
    assert point(tmp_path, train=[nanogpt(tmp_path / "train.bin", [*IDS, END])]) != folder


def test_the_fingerprint_is_of_the_tokens_not_of_the_place(tmp_path):
    (tmp_path / "moved").mkdir()
    here, there = point(tmp_path), point(tmp_path / "moved")
    assert open_dataset(here).manifest.fingerprint == open_dataset(there).manifest.fingerprint
    files = [
        json.loads((at / "dataset.json").read_text())["splits"]["train"]["shards"][0]["file"] for at in (here, there)
    ]
    assert files == [str(tmp_path / "train.bin"), str(tmp_path / "moved" / "train.bin")]


def test_verify_reads_the_files_again(tmp_path):
    from data_pipelines.stages.verify import problems

    folder = point(tmp_path)
    assert list(problems(folder)) == []
    nanogpt(tmp_path / "train.bin", [*IDS[:-1], 7])
    assert ["train.bin has changed" in problem for problem in problems(folder)] == [True]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"format": "nanogtp"}, ConfigurationError, r"data\.folder\.format=nanogtp is not .* Did you mean 'nanogpt'"),
        ({"dtype": "int16"}, ConfigurationError, r"data\.folder\.dtype=int16 is not uint16 or uint32"),
        ({"train": []}, ConfigurationError, r"data\.folder\.train=\[\] names no file of nanogpt ids"),
        ({"train": ["nowhere.bin"]}, DataError, r"nowhere\.bin does not exist"),
    ],
)
def test_a_wrong_setting_is_refused(tmp_path, settings, error, message):
    with pytest.raises(error, match=message):
        point(tmp_path, **settings)


def test_ids_that_the_tokenizer_lacks_are_refused_and_leave_nothing(tmp_path):
    with pytest.raises(DataError, match=r"train\.bin holds id 300, the tokenizer has 257 entries: it is another"):
        point(tmp_path, train=[nanogpt(tmp_path / "train.bin", [1, 300])])
    assert list((tmp_path / "data").iterdir()) == []


def test_files_of_two_types_are_refused(tmp_path):
    write = {"w.bin": "<u4", "n.bin": "<u2"}
    files = []
    for name, dtype in write.items():
        magic, version = (20240801, 7) if dtype == "<u4" else (20240520, 1)
        header = np.zeros(256, "<i4")
        header[:3] = [magic, version, 2]
        (tmp_path / name).write_bytes(header.tobytes() + np.array([1, 2], dtype).tobytes())
        files.append(str(tmp_path / name))
    with pytest.raises(DataError, match=r"ids of one type: .*w\.bin has uint32, .*n\.bin has uint16"):
        point(tmp_path, format="llm_c", train=files)


def test_a_tokenizer_that_would_be_trained_is_refused(tmp_path):
    untrained = Existing()
    untrained.sample_bytes = 1
    with pytest.raises(ConfigurationError, match=r"use tokenizer=folder tokenizer\.path=FOLDER"):
        point(tmp_path, tokenizer=untrained)


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
