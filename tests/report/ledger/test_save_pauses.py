"""A run's pauses for checkpoints are added up by their parts."""

import json

import pytest

from lmtrain.report.ledger.save_pauses import save_pauses


def test_copies_waits_and_writing_are_added_up(tmp_path):
    assert save_pauses(tmp_path) is None
    saves = [
        {"checkpoint/copy_seconds": 0.25, "checkpoint/wait_seconds": wait, "checkpoint/write_seconds": 2.0}
        for wait in (0.0, 0.5)
    ]
    rows = [{"train/loss": 1.0}, *saves, {"checkpoint/wait_seconds": 1.0}]
    lines = [json.dumps({"time": 0.0, "step": n, "tokens": n, "metrics": row}) for n, row in enumerate(rows)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    found = save_pauses(tmp_path)
    assert found is not None
    assert (found.num_saves, found.copied, found.waited, found.written) == pytest.approx((2, 0.5, 1.5, 4.0))
