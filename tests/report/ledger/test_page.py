import re

from lmtrain.accounting.observed.time_accounts import LOST, kind_words
from lmtrain.report.ledger.page import text_of
from lmtrain.report.ledger.run_ledger import read_ledger
from lmtrain.tracking.timekeeping.stopwatch import KINDS
from tests.report.ledger_folder import write
from tests.tiny import PROJECT


def test_the_docs_explain_every_kind_by_the_pages_name_for_it():
    rows = re.findall(r"^\| ([\w ]+) \| `(\w+)` \|", (PROJECT / "docs/profiling.md").read_text(), flags=re.MULTILINE)
    assert {key: name for name, key in rows} == {kind: kind_words(kind) for kind in (*KINDS, LOST)}
    assert kind_words("preempted") == "CPU taken by others", "SLURM's word for an evicted job"


def test_the_page_has_every_kind_its_share_and_the_sum(tmp_path):
    text = text_of(read_ledger(write(tmp_path / "a")))
    for shown in ("compute", "54.8%", "lost", "31.5%", "data wait", "total", "100.0%", "1min13s on the clock"):
        assert shown in text
    assert "biggest lever: lost 32%: lower callbacks.checkpoint.every_seconds" in " ".join(text.split())
    assert "$1.46 so far, $2.28 for the whole run" in text
    assert "0.001 TFLOP/s x 2 devices (a test)" in text


def test_the_difference_from_the_plan_is_explained_to_the_last_percent(tmp_path):
    lines = text_of(read_ledger(write(tmp_path / "a"))).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("plan beside fact"))
    rows = [line.split() for line in lines[start + 1 :]]
    assert "plan beside fact: 20s planned (at 40% MFU, assumed), 1min13s on the clock" in " ".join(lines)
    shares = {" ".join(row[:-2]): row[-1] for row in rows if row and row[-1].endswith("%")}
    assert shares == {
        "lost": "43.4%",
        "computing at 20.0% MFU, not 40.0%": "37.7%",
        "setup": "17.0%",
        "data wait": "1.9%",
        "difference": "100.0%",
    }


def test_the_page_has_no_control_characters(tmp_path):
    assert "\x1b" not in text_of(read_ledger(write(tmp_path / "a")))
