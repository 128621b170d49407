import json

from lmtrain.report.ledger.page import text_of
from lmtrain.report.ledger.run_ledger import read_ledger
from tests.report.ledger_folder import PLAN, write


def test_bytes_of_workers_stand_beside_the_planned_ones(tmp_path):
    groups = [{"group": "copies", "num_ranks": 2, "every_steps": 10}]
    run = write(tmp_path / "a", plan=PLAN | {"communication": {"bytes_per_step": 1e5, "groups": groups}})
    assert read_ledger(run).sent is None, "nothing was counted"
    points = [
        {"time": 1.0, "step": at, "tokens": 0, "metrics": {"communication/sent_bytes": at * 1.1e5}} for at in (10, 20)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    ledger = read_ledger(run)
    assert ledger.to_json()["sent_bytes"] == {"counted": 2.2e6, "planned": 2e6}
    assert "2.20 MB of deltas by the first worker, 2.00 planned" in text_of(ledger)
