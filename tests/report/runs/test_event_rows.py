import json
from pathlib import Path

from lmtrain.report.runs.event_rows import event_rows, last_step_of


def test_the_newest_event_of_a_name_counts_and_half_a_line_does_not(tmp_path: Path) -> None:
    assert last_step_of(tmp_path, "early_stopping") is None
    (tmp_path / "events").mkdir()
    path = tmp_path / "events/rank0.jsonl"
    rows = [json.dumps({"name": "early_stopping", "start": 1, "step": step}) for step in (4, 8)]
    path.write_text("\n".join([*rows, '{"name": "other", "start": 2, "step": 9}', "[]", '{"name": "early_']))
    assert last_step_of(tmp_path, "early_stopping") == 8
    assert len([*event_rows(path)]) == 3
