"""Local folders in the layouts of the public repositories, read through `datasets` as those of the hub are."""

import json
import shutil
from collections import Counter

import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.chat_mixture import ChatMixture
from lmtrain.errors import ConfigurationError, DataError

TURNS = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "A model."}]
README = (
    "---\nconfigs:\n- config_name: {config}\n  data_files:\n  - split: {split}\n    path: {config}/{split}-*\n---\n"
)


@pytest.fixture(scope="module", name="copies")
def local_copies(tmp_path_factory):
    import datasets

    folder = tmp_path_factory.mktemp("copies")
    (folder / "smoltalk/data").mkdir(parents=True)
    talk = [{"messages": TURNS, "source": "x"}] * 3
    datasets.Dataset.from_list(talk).to_parquet(folder / "smoltalk/data/train-00000-of-00001.parquet")
    for name, config, split, rows in (
        ("mmlu", "all", "auxiliary_train", [{"question": "2?", "subject": "", "choices": ["1", "2"], "answer": 1}] * 2),
        ("gsm8k", "main", "train", [{"question": "1 + 1?", "answer": "<<1+1=2>>2\n#### 2"}]),
    ):
        (folder / name / config).mkdir(parents=True)
        datasets.Dataset.from_list(rows).to_parquet(folder / name / config / f"{split}-00000-of-00001.parquet")
        (folder / name / "README.md").write_text(README.format(config=config, split=split))
    (folder / "identity.jsonl").write_text(f"{json.dumps(TURNS)}\n\n{json.dumps({'messages': TURNS})}\n[]\n")
    (folder / "words.txt").write_text("berry\nI'm\nab\n")
    return folder


def mixture(copies, **settings):
    names = {name: str(copies / name) for name in ("smoltalk", "mmlu", "gsm8k")}
    files = {"identity": str(copies / "identity.jsonl"), "words": str(copies / "words.txt")}
    return ChatMixture(**{**names, **files, "spelling_rows": 5, "counting_rows": 2, **settings})


def test_each_data_set_comes_as_often_as_in_the_public_mixture_and_is_told(copies, capsys) -> None:
    source = mixture(copies)
    source.check()
    rows = list(source.documents())
    kinds = Counter(row.id.partition(":")[0] for row in rows if isinstance(row, Document))
    assert kinds == {"smoltalk": 3, "mmlu": 6, "gsm8k": 4, "identity": 4, "spelling": 5, "counting": 2}
    assert [row.reason for row in rows if isinstance(row, Skipped)] == ["no messages"] * 2
    assert sum(row.id == "mmlu:0" for row in rows) == 3  # a repeated one keeps its name, and with it its split
    told = capsys.readouterr().err
    assert "smoltalk 3 rows x 1, mmlu 2 rows x 3, gsm8k 1 row x 4, identity 2 rows x 2, spelling 5 rows x 1" in told
    assert "24 rows in all" in told


def test_a_fingerprint_changes_with_the_files_and_the_settings(copies) -> None:
    same, other = mixture(copies).fingerprint(), mixture(copies, mmlu_epochs=1).fingerprint()
    assert (mixture(copies).fingerprint(), other != same) == (same, True)


def test_parts_may_be_left_out_and_it_says_which_files_are_missing(copies, capsys) -> None:
    rows = list(
        mixture(copies, identity=None, words=None, smoltalk_epochs=0, mmlu_epochs=0, gsm8k_epochs=1).documents()
    )
    assert [row.id for row in rows] == ["gsm8k:0"]
    assert "none of source.identity and source.words, which are not set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"mmlu_epochs": -1}, ConfigurationError, "source.mmlu_epochs=-1 is negative; nearest valid: 0"),
        ({"identity": "nowhere.jsonl"}, DataError, "source.identity=nowhere.jsonl is no file"),
        (
            dict.fromkeys(("smoltalk_epochs", "mmlu_epochs", "gsm8k_epochs"), 0) | {"identity": None, "words": None},
            ConfigurationError,
            "has 0 epochs of every data set",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(copies, settings, error, message) -> None:
    with pytest.raises(error, match=message):
        mixture(copies, **settings)


def test_a_folder_in_another_layout_is_refused_before_any_row(copies, tmp_path) -> None:
    with pytest.raises(DataError, match=r"^source\.mmlu=.*/gsm8k: config=all is no config .* it has main\.$"):
        mixture(copies, mmlu=str(copies / "gsm8k")).check()
    with pytest.raises(DataError, match=r"^source\.gsm8k=.*/gsm9k is neither a folder here nor OWNER/NAME"):
        mixture(copies, gsm8k=str(copies / "gsm9k")).check()
    bare = tmp_path / "gsm8k"
    shutil.copytree(copies / "gsm8k" / "main", bare / "main")
    with pytest.raises(DataError, match=r"config=main is no config .* it has default\. Copy its README\.md too"):
        mixture(copies, gsm8k=str(bare)).check()


def test_a_file_of_no_words_and_a_damaged_identity_are_told(copies, tmp_path) -> None:
    (tmp_path / "w").write_text("I\n")
    with pytest.raises(DataError, match="no word of three small letters"):
        list(mixture(copies, words=str(tmp_path / "w")).documents())
    (tmp_path / "i").write_text("{\n")
    with pytest.raises(DataError, match="i:1 is no JSON"):
        list(mixture(copies, identity=str(tmp_path / "i")).documents())
