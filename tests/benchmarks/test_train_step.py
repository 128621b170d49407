"""The ruler: every loop is held against our own loops that train the same architecture, of as many parameters."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness.hopper.cases import meta_model
from benchmarks.harness.train_step import driver, ruler, table
from benchmarks.harness.train_step.loops import LOOPS, architecture_of, counterpart
from benchmarks.harness.train_step.ruler import groups
from benchmarks.harness.train_step.task import Task, Unavailable
from benchmarks.peers.train_step.ours import model_words
from benchmarks.questions import train_step
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.run.compose.compose import compose_config

pytestmark = pytest.mark.benchmarks

SMALL = {"num_layers": 2, "num_heads": 3, "vocab_size": 1024, "context_tokens": 128, "num_sequences": 2}


def task_of(**shape):
    """Return a task of a shape, on a CPU, eager."""
    return Task(
        **(SMALL | shape), device="cpu", precision="fp32", is_compiled=False, threads=1, warm_up_steps=2, turn_steps=2,
        max_steps=100, data_root="", tokens_file="", peers="", scratch="",
    )  # fmt: skip


def shape_of(task, architecture) -> ModelShape:
    """Return the shape of our model of an architecture."""
    return meta_model(compose_config(model_words(task, architecture))).shape()


def contestant(name, *seconds, skipped=None):
    """Return a loop that took these seconds a step, turn by turn."""
    one = driver.Contestant(name, process=None, orders=None, answers=None, console=Path())  # pyright: ignore
    one.facts |= {"num_parameters": 7, "peak_bytes": 8e6, "first_step_seconds": 9.0, "host_syncs": 0.0, "given": "all"}
    one.facts |= {"skipped": skipped} if skipped else {}
    one.starts = [[{"cpu_seconds": each, "wall_seconds": each, "helper_cpu_seconds": 0.0} for each in seconds]]
    return one


def rows_of(*contestants):
    """Return the rows of a measurement by the loop's name."""
    return {row["loop"]: row for row in table.rows(contestants, task_of(), peak_flops=1e12, matmul_flops=1e12)}


@pytest.mark.parametrize("shape", train_step.SHAPES)
def test_our_llama_of_every_shape_multiplies_what_the_ruler_counts(shape):
    task = task_of(**train_step.SHAPES[shape])
    counted = task.flops.palm - 12 * task.num_layers * task.width * task.context_tokens
    assert shape_of(task, "llama").num_matmul_parameters * 6 == counted


@pytest.mark.parametrize("is_tied", [True, False])
def test_our_gpt2_has_nanogpt_s_parameters(is_tied):
    task = task_of(is_tied=is_tied)
    width, layers = task.width, task.num_layers
    tables = (task.vocab_size * (1 if is_tied else 2) + task.context_tokens) * width
    assert shape_of(task, "gpt2").num_parameters == tables + layers * (12 * width**2 + 2 * width) + width


def test_our_nano_has_nanochat_s_parameters():
    assert shape_of(task_of(), "nano").num_parameters == 1_474_626, "what nanochat's own model of this shape counts"


def test_each_loop_s_file_says_what_it_is_given_and_takes_its_settings():
    for name, loop in LOOPS.items():
        assert (driver.ROOT / f"benchmarks/peers/train_step/{loop.module}.py").is_file(), name
        assert (loop.settings.get("architecture", loop.architecture)) == loop.architecture, name
    assert architecture_of("benchmarks.peers.learning_speed.ours") == "llama"


@pytest.mark.parametrize("name", LOOPS)
def test_every_loop_has_our_own_two_of_its_architecture_beside_it(name):
    for kind in ("bare", "trainer"):
        ours = LOOPS[counterpart(name, kind)]
        assert ours.is_ours
        assert ours.module == kind
        assert ours.architecture == LOOPS[name].architecture


def test_ratios_are_medians_of_turns_to_our_loop_of_the_same_architecture():
    found = rows_of(
        contestant("trainer", 1.0, 2.0, 4.0),
        contestant("litgpt", 1.5, 2.0, 12.0),
        contestant("trainer_gpt2", 2.0, 2.0, 2.0),
        contestant("nanogpt", 1.0, 1.0, 1.0),
        contestant("nanochat", 1.0, 1.0, 1.0),
    )
    assert found["litgpt"]["against_trainer"]["median"] == 1.5
    assert found["nanogpt"]["against_trainer"]["median"] == 0.5
    assert found["nanochat"]["against_trainer"] is None
    assert found["litgpt"]["against_bare"] is None


def test_of_several_starts_the_ratio_is_spread_over_each_one_s_median(monkeypatch):
    seconds = iter(
        [{"trainer": (1.0, 1.0, 1.0), "litgpt": (1.0, 1.0, 9.0)}, {"trainer": (2.0,) * 3, "litgpt": (4.0,) * 3}]
    )

    def measure(names, *_, **__):
        took = next(seconds)
        return [contestant(name, *took[name]) for name in names]

    monkeypatch.setattr(ruler, "measure", measure)
    told = {"starts": 2, "rounds": 3, "tell": print, "peak_flops": 1.0, "matmul_flops": 1.0, "in_pairs": False}
    trainer, litgpt = ruler.measured_rows(["trainer", "litgpt"], task_of(), **told)
    assert litgpt["against_trainer"] == {"median": 1.5, "lower_quartile": 1.25, "upper_quartile": 1.75}
    assert trainer["step_seconds"]["median"] == 1.5


def test_a_loop_that_failed_in_one_start_is_left_out_and_not_started_again(monkeypatch):
    asked = []

    def measure(names, *_, **__):
        asked.append(list(names))
        return [contestant(name, 1.0, skipped="no memory" if name == "litgpt" else None) for name in names]

    monkeypatch.setattr(ruler, "measure", measure)
    trainer, litgpt = ruler.measured(["trainer", "litgpt"], task_of(), starts=3, rounds=1, tell=print)
    assert asked == [["trainer", "litgpt"], ["trainer"], ["trainer"]]
    assert (len(trainer.starts), trainer.is_running, litgpt.is_running) == (3, True, False)
    assert litgpt.facts["skipped"] == "no memory"


def test_a_loop_whose_process_died_between_turns_is_left_out_and_the_others_go_on(tmp_path, monkeypatch):
    (tmp_path / "walks").mkdir()
    walk = "GIVEN = 'nothing'\ndef run(task, turns):\n    while True:\n        turns.step()\n"
    (tmp_path / "walks/walking.py").write_text(walk)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    task = replace(task_of(), scratch=str(tmp_path))
    task.save(tmp_path / "task.json")
    environment, console = driver.environment_of(task), tmp_path / "walking.log"
    one = driver.start(
        "walks.walking", tmp_path / "task.json", worker=driver.WORKER, console=console, environment=environment
    )
    one.hear_until("ready")
    one.process.kill()
    one.process.wait()
    one.order(steps=2)
    one.hear_until("ready")
    assert one.facts["skipped"].startswith("its process died")
    driver._finish(one, count_syncs=False)


def test_every_round_begins_with_another_loop():
    three = [contestant(name, 1.0) for name in "abc"]
    assert ["".join(one.name for one in driver.in_turn(three, number)) for number in range(4)] == [
        *("abc", "bca", "cab", "abc")
    ]
    assert driver.in_turn([], 3) == []


def test_two_at_a_time_each_loop_stands_beside_our_trainer_of_what_it_trains():
    assert groups(["bare", "trainer", "litgpt", "trainer_gpt2", "nanogpt"], in_pairs=True) == [
        ["trainer", "bare"],
        ["trainer", "litgpt"],
        ["trainer_gpt2", "nanogpt"],
    ]
    assert groups(["trainer", "litgpt"], in_pairs=False) == [["trainer", "litgpt"]]
    assert groups(["litgpt", "trainer_nano"], in_pairs=True) == [["litgpt"], ["trainer_nano"]]


def test_a_loop_of_several_pairs_has_one_row(monkeypatch):
    monkeypatch.setattr(ruler, "measure", lambda names, *_, **__: [contestant(name, 1.0) for name in names])
    told = {"rounds": 1, "tell": print, "peak_flops": 1.0, "matmul_flops": 1.0, "in_pairs": True}
    found = list(ruler.measured_rows(["bare", "trainer", "litgpt"], task_of(), **told))
    assert [row["loop"] for row in found] == ["trainer", "bare", "litgpt"]
    assert found[1]["against_trainer"]["median"] == 1.0


def test_a_loop_that_dropped_out_is_a_line_with_its_reason_below_the_table():
    found = rows_of(contestant("trainer", 1.0, 1.0), contestant("litgpt", skipped="no checkout"))
    text = table.markdown(list(found.values()))
    assert text.splitlines()[-1] == "- litgpt took no part: no checkout"
    (line,) = [line for line in text.splitlines() if line.startswith("| trainer ")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert len(cells) == len(table.HEADS)
    assert cells[table.HEADS.index("against our Trainer (quartiles)")] == "1.000 (1.000 to 1.000)"
    assert cells[table.HEADS.index("against bare")] == "-"


def test_a_loop_runs_in_its_own_process_takes_turns_and_ends(tmp_path, monkeypatch):
    (tmp_path / "walks").mkdir()
    (tmp_path / "walks/walking.py").write_text(
        "GIVEN = 'nothing'\n"
        "def run(task, turns):\n"
        "    turns.say(num_parameters=task.num_layers)\n"
        "    while True:\n"
        "        turns.step()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    task = replace(task_of(), scratch=str(tmp_path))
    (walking, missing) = driver.measure(["walks.walking", "walks.nowhere"], task, rounds=3, tell=lambda line: None)
    assert walking.facts["num_parameters"] == 2
    assert walking.facts["host_syncs"] == 0
    assert walking.facts["ended"]
    assert len(walking.turns) == 3
    assert missing.facts["skipped"].startswith("not importable: No module named")
    assert walking.process.returncode == 0


def test_a_peer_without_a_checkout_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(Unavailable, match=r"no checkout litgpt in --peers \(not given\)"):
        task_of().checkout("litgpt")


@pytest.mark.parametrize(
    "option", ["--sequences", "--starts", "--rounds", "--turn-steps", "--warm-up-steps", "--threads"]
)
@pytest.mark.parametrize("value", ["0", "-1", "banana", "1.5"])
def test_a_count_is_a_whole_number_from_one(option, value, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train_step.py", option, value])
    with pytest.raises(SystemExit) as refused:
        train_step.parse()
    assert refused.value.code == 2
    assert f"argument {option}: {value} is not a whole number from 1" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "peers"), [([], ""), (["--peers", "/somewhere/checkouts"], "/somewhere/checkouts")])
def test_a_kept_page_names_no_path_of_one_machine(words, peers, tmp_path, monkeypatch):
    monkeypatch.setattr(train_step, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["train_step.py", *words, "--hardware", "here"])
    found = rows_of(contestant("trainer", 1.0))
    report = {
        "task": SMALL, "peak_flops": 1e12, "matmul_flops": 1e12, "device": "CPU", "torch": "2", "python": "3",
        "date": "today", "modes": {"eager": list(found.values())},
    }  # fmt: skip
    train_step.keep(report, train_step.parse())
    (page,) = tmp_path.glob("*.md")
    assert "- trainer: all." in page.read_text()
    assert "/somewhere" not in page.read_text()
