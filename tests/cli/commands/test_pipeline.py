import json
import subprocess
import sys
from pathlib import Path

import pytest

from lmtrain.cli.commands.evaluate import evaluate
from lmtrain.cli.commands.export import export
from lmtrain.cli.commands.pipeline import pipeline
from lmtrain.errors import EnvironmentProblem
from lmtrain.run.pipelines.run import Stops
from tests import forked, tiny

DATA = ["data=prepared", "source=made_conversations", "source.num_conversations=120", "data.folder.references=false"]
HELD_OUT = ["data.folder.validation_fraction=0.1", "data.folder.test_fraction=0.1"]
BASE = [*tiny.MODEL, *tiny.BATCH, "tokenizer=byte_level", "tokenizer.vocab_size=512", "tokenizer.chat=true"]
TINY = [f"base.{word}" for word in [*BASE, "source=made_conversations"]] + [
    *(f"each.{word}" for word in [*tiny.QUIET, *DATA, *HELD_OUT]),
    *("base.budget.tokens=512", "talker.budget.tokens=512"),
    *(f"pipeline.stages.{name}.words=[--made,7,--num-new-tokens,3]" for name in ("base_answers", "talker_answers")),
]


def test_a_pipeline_goes_from_text_to_a_scored_and_exported_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = [""]

    def call(words: list[str]) -> int:  # in forks and here, for speed
        if words[0] == failing[0]:
            return 3
        if words[0] == "train":
            ended = forked.run(tiny.PROJECT / "train.py", words[1:], folder=tmp_path, environment=tiny.environment())
            assert ended.returncode == 0, ended.stderr
            return 0
        return {"evaluate": evaluate, "export": export}[words[0]](words[1:])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Stops, "call", lambda _, words: call(words))
    assert pipeline(TINY) == 0
    printed = capsys.readouterr().out
    assert "As a page: runs/speedrun_cpu/card.html" in printed
    folder = tmp_path / "runs" / "speedrun_cpu"
    assert "answers/all" in (folder / "card.md").read_text()
    assert (folder / "exported" / "model.safetensors").is_file()
    assert pipeline([*TINY, "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["talker_answers"]["scores"]["answers/all"]["num_items"] == 7
    assert all(stage["seconds"] > 0 for stage in card.values())
    assert ", skipped: unchanged | " in (folder / "card.md").read_text()
    assert (folder / "talker" / "card.html").is_file()
    assert pipeline([*TINY, "--plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["together"]["seconds"] == 0, "all has ended"
    failing[0] = "export"
    assert pipeline([*TINY, "talker.seed=7"]) == 3
    failing[0] = ""
    assert pipeline([*TINY, "talker.seed=7"]) == 0
    config = (folder / "talker" / "config.yaml").read_text()
    assert "seed: 7" in config, "trained anew"
    assert (folder / "talker.before-1").is_dir()


def test_nanochat_s_speedrun_fits_and_takes_its_published_hours_and_a_plan_beyond_the_devices_answers_1(capsys) -> None:
    assert pipeline(["pipeline=speedrun", "--plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["ok"]
    stages = {stage["name"]: stage for stage in plan["stages"]}
    assert stages["base"]["seconds"] == pytest.approx(1.65 * 3600, rel=0.05)
    trained = [stage for stage in plan["stages"] if stage["verb"] == "train"]
    assert all(stage["seconds"] and stage["usd"] and stage["kept_bytes"] for stage in trained)
    assert plan["together"]["usd"] == pytest.approx(sum(stage["usd"] for stage in trained))
    assert pipeline(["pipeline=speedrun", "--plan", "base.batch.micro_batch_sequences=16"]) == 1
    assert "does not fit: 80.2 GB at the peak, 80.0 GB on the device" in capsys.readouterr().out


def test_two_pipelines_of_one_name_are_not_run_at_once(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    hold = (
        "import sys\nfrom pathlib import Path\nfrom lmtrain.tracking.atomic_files import file_lock\n"
        "with file_lock(Path(sys.argv[1]), wait_seconds=0):\n    print(flush=True)\n    input()"
    )
    words = [sys.executable, "-c", hold, str(tmp_path / "p" / ".lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(EnvironmentProblem, match=rf"p is being run by process {other.pid} on .*; wait for it, or"):
            pipeline([f"run.root={tmp_path}", "run.name=p"])
        other.communicate(b"\n")
