import json
from pathlib import Path

import pytest

from lmtrain.cli.commands.ls import ls
from lmtrain.errors import ConfigurationError
from tests.report.runs_on_disk import write_run


def test_all_runs_below_a_folder_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("runs/a", "runs/below/b"):
        write_run(tmp_path / name)
    assert ls([str(tmp_path / "runs")]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["run", "a", "b"]
    assert ls([str(tmp_path / "runs" / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["loss"] == 4.25


def test_scores_of_other_tokenizers_and_texts_are_not_set_side_by_side_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, tokenizer in (("a", "x"), ("b", "y"), ("unknown", "")):
        run = write_run(tmp_path / name)
        dataset = {"name": "notes", "splits": {"validation": {"text_bytes": 5000}}, "tokenizer_fingerprint": tokenizer}
        if tokenizer:
            (run / "dataset.json").write_text(json.dumps(dataset))
    ls([str(tmp_path)])
    assert "The tokenizers differ: bits per byte compare, nats per token would not." in capsys.readouterr().out
    ls([str(tmp_path / "a"), str(tmp_path / "unknown")])
    assert "differ" not in capsys.readouterr().out


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no run"):
        ls([str(tmp_path)])
