"""A run's page: figures, curves, spikes, profile, and no markup of a model's or a person's."""

import json

import pytest

from lmtrain.report.run_page import report_page, write_report
from lmtrain.report.runs.facts import profile_lines
from lmtrain.tracking.run_log import RunLog
from tests.points import append_point
from tests.report.ledger_folder import write
from tests.report.test_pages import Reader

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J"


@pytest.fixture
def folder(tmp_path):
    """A finished run whose model, config and names all try to break out of the page."""
    path = write(tmp_path / "a")
    log = RunLog(path)
    for step in range(5):
        append_point(log, step, step * 1000, {"train/loss": 5.0 - step, "validation/bits_per_byte": 2.0 - step / 10})
    log.close()
    (path / "samples.jsonl").write_text(json.dumps({"prompt": "", "text": ATTACK}))
    (path / "run.json").write_text(json.dumps({"name": f"cat {ATTACK}"}))
    attempt = path / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "overrides.txt").write_text(f"run.name={ATTACK}\n")
    (attempt / "config.yaml").write_text(f"seed: {ATTACK}\n")
    (attempt / "versions.json").write_text(json.dumps({"torch": ATTACK, "obscure": "1.2"}))
    return path


def test_the_page_holds_time_plan_curves_scores_and_settings(folder):
    page = Reader(report_page(folder))
    for shown in (
        "killed at step 20 of 40",
        "Where the time went",
        "2 attempts, one bar each",
        "Plan and fact",
        "computing at 20.0% MFU, not 40.0%",
        "after step 41.600",
        "Changed from the defaults",
        "obscure 1.2",
        "Biggest lever: lost 32%",
    ):
        assert shown in page.text
    labels = [attributes["aria-label"] for _, attributes in page.tags if "aria-label" in attributes]
    assert labels[0].startswith("Training loss, nats per token, over tokens: from 5 to 1")
    assert len(labels) == 3, "the loss, the score, and the bars"


def test_what_a_model_or_a_person_wrote_is_text(folder):
    page = report_page(folder)
    found = Reader(page)
    assert not {"script", "img"} & {name for name, _ in found.tags}
    assert not [key for _, attributes in found.tags for key in attributes if key.startswith("on")]
    assert found.text.count("<script>alert(1)</script>") == 7, (
        "title, heading, sample, override, config, versions twice"
    )
    assert "\x1b" not in page


def test_the_file_needs_nothing_from_elsewhere(folder):
    text = write_report(folder).read_text()
    found = Reader(text)
    assert not [attributes for _, attributes in found.tags if {"src", "href"} & attributes.keys()]
    assert "url(" not in text
    assert "@import" not in text
    assert "width=device-width" in text


def test_scores_by_evaluate_have_their_step_and_error_and_strange_ones_are_left_out(folder):
    scores = {
        "evaluation/test/bits_per_byte": {"score": 1.84347, "standard_error": 0.1622},
        "answers/spell": {"score": 0.75, "standard_error": 0.02, "guess": 0.1},
        "odd": {"score": "high"}, "odder": 3, "oddest": {"score": 1, "ended": "x"},
    }  # fmt: skip
    (folder / "evaluation").mkdir()
    (folder / "evaluation/step_00000004.json").write_text(json.dumps(scores))
    (folder / "evaluation/step_00000005.json").write_text("[]")
    text = Reader(report_page(folder)).text
    assert "test, bits per byte41.8435 ± 0.1622answers, spell475.0% ± 2.0%" in text
    assert "odd" not in text.partition("Scores by lmtrain evaluate")[2].partition("Samples")[0]


def test_operators_and_memory_are_shown(tmp_path):
    assert profile_lines(tmp_path) == []
    folder = tmp_path / "profile"
    folder.mkdir()
    (folder / "operators_rank0.txt").write_text("Rank 0, 2 steps up to 9\naten::mm<x>\x1b[2J  3\n")
    (folder / "memory_rank0.txt").write_text("Rank 0, 1 step up to 9\naten::empty  2.0 KB\n")
    lines = "\n".join(profile_lines(tmp_path))
    assert "aten::mm<x>" in lines
    assert "\x1b" not in lines
    assert "aten::empty  2.0 KB" in lines
