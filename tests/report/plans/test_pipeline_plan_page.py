from lmtrain.accounting.training_plan.stages import PipelinePlan, StagePlan, done_stage
from lmtrain.report.plans.pipeline_plan_page import plan_text

KNOWN = {"seconds": 60.0, "usd": 1.5, "disk_bytes": 2**20, "kept_bytes": 2**20, "basis": "assumed"}


def test_a_plan_has_a_row_a_stage_their_sum_and_the_reasons_in_80_columns():
    reason = "of a length that takes more than one line of a terminal, " * 3
    stages = [
        StagePlan(name="base", verb="train", tokens=10**6, reasons=(reason,), **KNOWN),
        StagePlan(name="exported", verb="export", **KNOWN),
        done_stage("base_text", "evaluate"),
    ]
    lines = plan_text(PipelinePlan(name="mine", stages=stages, free_bytes=10**6)).splitlines()
    assert lines[2].split() == ["base", "1.0M", "1min00s", "$1.50", "1.0MB", "assumed"]
    assert lines[3].split() == ["exported", "1min00s", "$1.50", "1.0MB", "assumed"]
    assert lines[4].split() == ["base_text", "done"]
    assert lines[5].split() == ["together", "2min00s", "$3.00", "2.1MB"]
    assert lines[6].startswith("  disk: 2.1MB at once, at most; 1.0MB are free here, too few: free some space")
    assert lines[7] == "    or set run.root to a larger disk"
    assert any(line.startswith("  base: of a length") for line in lines)
    assert max(map(len, lines)) <= 80
