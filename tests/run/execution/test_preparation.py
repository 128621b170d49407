import json
import shutil
from pathlib import Path

import pytest

from lmtrain.cli.main import serve
from lmtrain.data.shards import open_dataset
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.execution.preparation import checked_folder, prepare_data
from lmtrain.run.planning.prepared_tokens import prepared_train_tokens
from lmtrain.run.run_config import read_config


def folder(*words: str) -> dict[str, object]:
    """Return the checked node of the data that a command line prepares."""
    config = compose_config(list(words), config_name="prepare")
    return checked_folder(config, parse_arguments(list(words), budget_group=False))


def refusal(words: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Type a command and return its exit code and the one line it is refused with."""
    code = serve("prepare", words, program="lmtrain prepare")
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("lmtrain: ")]
    assert len(said) == 1, said
    return code, said[0]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["source=files"], ["source.paths: must be given; add 'source.paths=[my/notes]'"]),
        (["source=files", "source.pahts=[a]"], ["unknown key source.pahts", "Did you mean 'source.paths=[a]'?"]),
        (["source=files", "source.paths=[a]", "source.format=jsn"], ["source.format: must be", "json_lines"]),
        (["source=file", "source.paths=[a]"], ["source=file: unknown option", "Did you mean 'source=files'?"]),
        (["tokenizer.vocab_size=many"], ["tokenizer.vocab_size=many is not a number"]),
        (["data.folder.shard_tokens=many"], ["data.folder.shard_tokens=many is not a number"]),
        (["budget.tokens=much"], ["budget.tokens: must be a whole number"]),
        (["budget.steps=5"], ["unknown key budget.steps", "budget has tokens"]),
        (["budget=tokens"], ["budget=tokens: unknown key budget"]),
        (["budget.tokens=1M", "data=synthetic"], ["data.folder.token_budget=1000000 is not a setting"]),
        (["data.num_workers=2"], ["data.num_workers=2 has no effect here: it is a setting of training"]),
        (["data=mixture"], ["data.folder is missing", "leave data=... out"]),
        (["data.folder.num_processes=-2"], ["data.folder.num_processes must be at least 0, got -2"]),
        (["+tpyo=1"], ["unknown key tpyo"]),
        (["packing=best_fit"], ["packing=best_fit has no effect here: it is a setting of training; leave it out."]),
    ],
)
def test_a_wrong_setting_is_refused_under_the_name_that_was_typed(
    words: list[str],
    parts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = refusal(words, capfd)
    assert code == 2, said
    assert "folder.source" not in said
    for part in parts:
        assert part in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (["source.paths=[noets]"], 4, ["source.paths: noets does not exist", "Did you mean 'notes'?"]),
        (["source.paths=[notes]", "source.text_column=txt"], 4, ["source.text_column=txt", "only text, id"]),
        (["source.paths=[s4://b/a]"], 2, ["got s4://b/a"]),
    ],
)
def test_a_wrong_source_is_refused_before_any_work(
    words: list[str],
    code: int,
    parts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.jsonl").write_text('{"text": "a", "id": 1}\n')
    answered, said = refusal(["source=files", *words], capfd)
    assert answered == code, said
    for part in parts:
        assert part in said
    assert [path.name for path in tmp_path.glob("data/*") if path.name[0] != "."] == []


def test_it_prints_the_folder_and_a_training_run_asks_for_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = (json.dumps({"text": f"On day {day} we walked {day * 7 % 31} miles. " * 5}) + "\n" for day in range(400))
    (tmp_path / "walks.jsonl").write_text("".join(rows))
    words = ["source=files", "source.paths=[walks.jsonl]", "tokenizer=byte_level"]
    assert prepare_data([*words, "budget.tokens=20K"]) == 0
    printed = Path(capsys.readouterr().out.strip())
    manifest = json.loads((printed / "dataset.json").read_text())
    assert 20_000 <= manifest["splits"]["train"]["num_tokens"] < 20_300
    assert prepare_data([*words, "data.folder.token_budget=20K"]) == 0
    assert Path(capsys.readouterr().out.strip()) == printed


def test_a_training_s_words_prepare_its_data_and_its_plan_knows_the_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = (json.dumps({"text": f"On day {day} we walked {day * 7 % 31} miles. " * 5}) + "\n" for day in range(100))
    (tmp_path / "walks.jsonl").write_text("".join(rows))
    words = ["source=files", "source.paths=[walks.jsonl]", "tokenizer=byte_level"]
    training = ["task=pretrain", *words, "budget.epochs=2", "seed=3"]
    printed = list[str]()
    for typed in (training, words):
        assert serve("prepare", [*typed, "data.folder.references=false"], program="lmtrain prepare") == 0
        printed.append(capfd.readouterr().out)
        config = read_config(compose_config([*training, "data.folder.references=false"]))
        num_tokens = open_dataset(Path(printed[-1].strip())).split("train").num_tokens
        assert prepared_train_tokens(config) == num_tokens
        shutil.rmtree(tmp_path / ".cache")
    assert printed[0] == printed[1]
    code, said = refusal(["task=sft", "init_from=runs/gone", *words], capfd)
    assert code == 2
    assert "init_from=runs/gone" in said


def test_a_folder_that_was_damaged_since_is_an_error_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text(f"the text of file number {number} " * 9)
    words = ["source=files", f"source.paths=[{tmp_path}/*.txt]", "tokenizer=byte_level", "cleaning=none"]
    assert serve("prepare", words, program="lmtrain prepare") == 0
    (shard,) = tmp_path.glob("data/*/train_00000.ds")
    shard.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:])
    code, said = refusal(words, capfd)
    assert code == 4
    assert "train_00000.ds is damaged: its sha256" in said
