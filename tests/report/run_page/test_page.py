import json

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.report.ledger.page import text_of
from lmtrain.report.ledger.run_ledger import read_ledger
from lmtrain.report.run_page.page import report_page, write_report
from lmtrain.report.summary import summarize
from lmtrain.tracking.run_log import RunLog
from tests.points import append_point
from tests.report.ledger_folder import ROWS, row, write
from tests.report.test_markup import Reader

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
        "Plan beside fact",
        "computing at 20.0% MFU, not 40.0%",
        "after training1.600",
        "Changed from the defaults",
        "obscure 1.2",
        "Biggest lever: lost 32%",
    ):
        assert shown in page.text
    labels = [attributes["aria-label"] for _, attributes in page.tags if "aria-label" in attributes]
    assert labels[0].startswith("Training loss, nats per token, over tokens: from 5 to 1")
    assert len(labels) == 6, "the loss over tokens, clock and FLOPs, the score, goodput, and the bars"


def test_each_speed_of_a_page_has_its_clock(folder):
    append_point(RunLog(folder), 20, 20_000, {"speed/tokens_per_second": 400.0})
    text = Reader(report_page(folder)).text
    assert "Tokens/s: 500 while computing, 400 over whole steps, 274 over the clock; those over whole steps, at" in text
    assert "time on the clock, of all kinds20s1min13s" in text
    told = "500 while computing, 400 over whole steps, 274 over the clock"
    for page in (text_of(read_ledger(folder)), summarize(folder)):
        assert told in " ".join(page.split())


def test_a_chat_run_s_page_says_which_tokens_its_speeds_count(tmp_path):
    counted = [row(0, start=1005.0, tokens=0), row(20, start=1045.0, tokens=8000, compute=40.0)]
    chat = write(tmp_path / "chat", rows=[ROWS[0], *counted])
    append_point(RunLog(chat), 20, 20_000, {"speed/tokens_per_second": 160.0, "speed/mfu_palm": 0.1})
    text = Reader(report_page(chat)).text
    assert "Tokens/s with loss: 200 while computing, 160 over whole steps, 178 over the clock; those over" in text
    assert "MFU (PaLM) of computing, of all tokens" in text
    assert "here of computing, in all steps, and there of tokens with loss." in text


def test_the_bar_of_the_time_is_in_the_order_of_its_table(folder):
    text = report_page(folder)
    tags = Reader(text).tags
    rows = [each["style"].removeprefix("color:") for _, each in tags if each.get("class") == "swatch"]
    bars = [(float(each["y"]), float(each["x"]), each["fill"]) for name, each in tags if name == "rect"]
    for attempt in {y for y, _, _ in bars}:
        drawn = [fill for y, _, fill in sorted(bars) if y == attempt]
        assert drawn == [colour for colour in rows if colour in drawn]
    assert len(bars) > 4


def test_two_utilizations_on_a_page_have_a_sentence(folder):
    assert "MFU at the top" not in report_page(folder)
    log = RunLog(folder)
    append_point(log, 5, 5000, {"speed/tokens_per_second": 1000.0, "speed/mfu_palm": 0.123})
    log.close()
    page = Reader(report_page(folder)).text
    assert "12.3%MFU (PaLM)" in page
    assert "MFU at the top, 12.3%, is of the logged steps" in page


def test_before_training_is_before_the_first_step_or_left_out(folder):
    assert "before training2.000" in Reader(report_page(folder)).text
    path = folder / "metrics.jsonl"
    _, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join(others))
    assert "before training" not in report_page(folder)


def test_before_training_names_its_part_of_the_text_where_an_extended_run_reads_more(folder):
    (folder / "dataset.json").write_text(
        json.dumps(
            {
                "splits": {"validation": {"text_bytes": 1000}},
                "references": {"validation": {"gzip_bits_per_byte": 1.9}},
            }
        )
    )
    (folder / "attempts/2").mkdir()
    (folder / "attempts/2/data.json").write_text('{"fingerprint": "one"}')
    path = folder / "metrics.jsonl"
    points = [json.loads(line) for line in path.read_text().splitlines()]
    for point in points:
        point["metrics"]["validation/num_bytes"] = 250.0 if point["step"] < 2 else 500.0
    path.write_text("".join(f"{json.dumps(point)}\n" for point in points))
    text = Reader(report_page(folder)).text
    assert "before training, of the first 25.0%2.000" in text
    assert "the model read the first 50.0%, 500 bytes" in text
    assert "gzip -9, of all of it1.900" in text


def test_a_killed_run_s_page_is_of_its_last_step_and_says_of_which_its_score_is(folder):
    append_point(RunLog(folder), 30, 30_000, {"train/loss": 1.0})  # its accounts end at step 20
    text = Reader(report_page(folder)).text
    assert "killed at step 30 of 40" in text
    assert "30steps30.0Ktokens" in text
    assert "1.600bits per byte, held out, after step 4" in text
    assert "before training2.000after step 41.600" in text
    path = folder / "metrics.jsonl"
    first, *_, last = path.read_text().splitlines(keepends=True)
    path.write_text(first + last)
    assert Reader(report_page(folder)).text.count("before training") == 2, "in its tile and its table"


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


def test_tags_are_closed_in_the_order_in_which_they_were_opened(folder):
    class Balance(Reader):
        def __init__(self, page):
            self.opened = []
            super().__init__(page)

        def handle_starttag(self, tag, attrs):
            super().handle_starttag(tag, attrs)
            if tag != "meta":
                self.opened.append(tag)

        def handle_startendtag(self, tag, attrs):
            pass

        def handle_endtag(self, tag):
            assert self.opened.pop() == tag

    assert Balance(report_page(folder)).opened == []


def test_a_run_of_which_little_is_known_has_a_page(tmp_path):
    (tmp_path / "status.json").write_text(json.dumps({"status": "FAILED", "reason": f"Step 3 {ATTACK}"}))
    page = report_page(tmp_path)
    assert "Where the time went" not in page
    assert "<p>Step 3 &lt;script&gt;" in page


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


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="not the folder of a run"):
        report_page(tmp_path)
