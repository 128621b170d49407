import pytest

from lmtrain.run.compose.bare_words import IN_A_FILE, place_alone


@pytest.mark.parametrize(
    ("words", "last", "found"),
    [
        (["a.txt"], "model=nano", "source.paths=[a.txt]"),
        (["texts", "a.jsonl.gz", "seed=1"], "", "source.paths=[texts,a.jsonl.gz]"),
        (["README"], "", "source.paths=[README]"),
        (["weights"], "", None),  # a folder without a text
        (["weights", "conf/a.py", "seed=1"], "source=files", "source.paths=[weights,conf/a.py]"),
        (["model"], "", None),
        (["notes.txt"], "tokenizer.path=my", None),  # a file of that name is there
        (["notes.txt"], "source.paths=my", None),
    ],
)
def test_a_text_without_a_key_is_one_to_train_on(words, last, found, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("texts", "weights", "model"):
        (tmp_path / folder).mkdir()
    for file in ("texts/a.md", "weights/a.bin", "README", "my notes.txt"):
        (tmp_path / file).touch()
    place = place_alone(words, last)
    assert (place and place[1].words[1]) == found


def test_a_file_of_settings_is_told_where_settings_are() -> None:
    found = place_alone(["config/train.py", "seed=1"], "")
    assert found is not None
    assert found[0] == 1
    assert found[1].note == IN_A_FILE
