"""`lmtrain evaluate`: scores of a run and their names."""

import json
import math
from pathlib import Path

import pytest

from data_pipelines.sources.made_conversations import KINDS
from lmtrain.cli.commands.evaluate import evaluate
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_log import read_points
from lmtrain.tracking.scores import all_scores
from tests import tiny
from tests.evaluation.bundles import CHOICES, write_bundle
from tests.evaluation.copies import write_copies
from tests.evaluation.task_files import write_tasks
from tests.interop.hugging_face import saved


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    finished = tiny.train(folder, "budget.steps=16", "run.name=a", "weight_average=ema")
    assert finished.returncode == 0, finished.stderr
    return folder / "runs" / "a"


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    saved("llama", path)
    return path


def scored(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, dict[str, float]]:
    assert evaluate([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["scores"]


def without_time(kept: object) -> dict[str, object]:
    """Return a kept score as it was printed."""
    assert isinstance(kept, dict)
    assert kept.pop("scored_at") > 0
    return kept


def test_a_run_is_scored_on_its_own_test_split_and_keeps_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = scored(capsys, run)
    assert list(found) == ["evaluation/test/bits_per_byte"]
    (kept,) = (run / "evaluation").iterdir()
    assert kept.name == "step_00000016.json"
    assert found.items() == {name: without_time(one) for name, one in read_json(kept).items()}.items()
    *_, last = read_points(run / "metrics.jsonl")
    assert last.metrics == {"evaluation/test/bits_per_byte": found["evaluation/test/bits_per_byte"]["score"]}


def test_the_average_of_the_weights_is_scored_beside_them(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, averaged = scored(capsys, run), scored(capsys, run, "--weights", "ema")
    (name,), (averaged_name,) = found, averaged
    assert averaged_name == "evaluation/test/ema_bits_per_byte"
    kept = all_scores(run)[16]
    assert [kept[name]["score"], kept[averaged_name]["score"]] == [
        found[name]["score"],
        averaged[averaged_name]["score"],
    ]
    assert averaged[averaged_name]["score"] != found[name]["score"]


def test_validation_text_scores_as_in_training(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    score = scored(capsys, run, "--split", "validation")["evaluation/validation/bits_per_byte"]["score"]
    trained = [point.metrics for point in read_points(run / "metrics.jsonl") if point.step == 16]
    (expected,) = (one["validation/bits_per_byte"] for one in trained if "validation/bits_per_byte" in one)
    assert score == pytest.approx(expected, rel=1e-6)


def test_a_text_s_score_does_not_depend_on_the_batch(
    imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("one two three\n" * 20)
    words = [imported, "--text", tmp_path / "notes.txt", "--context-tokens", 16]
    first, second = (scored(capsys, *words, "--batch-tokens", size) for size in (16, 4096))
    one, two = (found["evaluation/notes/bits_per_byte"] for found in (first, second))
    assert one["score"] == pytest.approx(two["score"], rel=1e-6)
    assert one["num_bytes"] == 280
    assert one["standard_error"] > 0
    assert evaluate([*map(str, words)]) == 0
    printed = capsys.readouterr().out
    assert f"{one['score']:.4f} +- " in printed
    assert max(map(len, printed.splitlines()[1:])) <= 80


def test_core_is_the_mean_of_its_tasks(imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = write_bundle(tmp_path / "bundle")
    found = scored(capsys, imported, "--core", bundle)
    mean = found.pop("core/mean")["score"]
    assert mean == pytest.approx(math.fsum(one["score"] for one in found.values()) / 3)
    assert evaluate([str(imported), "--core", str(bundle), "--tasks", "choices"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "of 4" in printed[0]
    assert printed[-1] == "  CORE itself has 22 tasks; these are 1."
    assert max(map(len, printed)) <= 80


def test_chat_tasks_and_those_of_lm_eval_are_scored_and_kept(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copies, tasks = write_copies(tmp_path / "copies"), write_tasks(tmp_path / "tasks")
    words = ["--chat", copies, "--tasks", "mmlu,gsm8k", "--num-new-tokens", 3, "--max-items", 2]
    found = scored(capsys, run, *words, "--lm-eval", "next_choice", "--task-folder", tasks, "--allow-task-code")
    names = ["chat/mmlu", "chat/gsm8k", "chat/mean_of_2", "lm_eval/next_choice/acc", "lm_eval/next_choice/acc_norm"]
    assert list(found) == names
    assert all(one["standard_error"] is not None for one in found.values())
    assert found["chat/mean_of_2"]["score"] == pytest.approx(
        (found["chat/mmlu"]["score"] + found["chat/gsm8k"]["score"]) / 2
    )
    kept = read_json(run / "evaluation" / "step_00000016.json")
    assert found.items() <= {name: without_time(one) for name, one in kept.items()}.items()
    *_, last = read_points(run / "metrics.jsonl")
    assert set(names) <= set(last.metrics)
    assert evaluate([str(run), "--chat", str(copies), "--tasks", "mmlu"]) == 0
    *printed, ended, renamed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "  All tasks are 5."
    assert max(map(len, printed)) <= 80
    assert (ended.partition(" ")[0], renamed.split()[1]) == ("Kept", "chat/mmlu_2:"), "all of its items, not two"


def test_answers_are_scored_by_kind(imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = tmp_path / "asked.jsonl"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    asked.write_text("".join(json.dumps({"messages": turns, "kind": kind}) + "\n" for kind in ("x", "y", "y")))
    found = scored(capsys, imported, "--answers", asked, "--num-new-tokens", 4)
    assert {name: one["num_items"] for name, one in found.items()} == {"answers/x": 1, "answers/y": 2, "answers/all": 3}
    assert all(one["guess"] == 1 for one in found.values())
    assert evaluate([str(imported), "--made", "7", "--num-new-tokens", "4"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[1:]] == [*KINDS, "all"]
    assert max(map(len, printed)) <= 80


def test_data_of_another_tokenizer_and_a_context_beyond_the_model_are_refused(
    run: Path, imported: Path, tmp_path: Path
) -> None:
    data = read_json(run / "run.json")["data"]
    with pytest.raises(DataError, match="ids differ between tokenizers"):
        evaluate([str(imported), "--data", str(data)])
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ConfigurationError, match=r"--context-tokens: must be at most the model.s \d+, got 99999"):
        evaluate([str(imported), "--text", str(tmp_path / "a.txt"), "--context-tokens", "99999"])
    bundle = write_bundle(tmp_path / "bundle", {"choices": ("multiple_choice", 50, CHOICES)}, num_shots=1)
    with pytest.raises(ConfigurationError, match="--max-items: "):
        evaluate([str(imported), "--core", str(bundle), "--max-items", "1"])
