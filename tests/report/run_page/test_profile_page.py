import json

from lmtrain.report.run_page.profile_page import profile_lines, profile_section
from lmtrain.training.profiling.profiled_steps import MEMORY_KINDS
from lmtrain.training.profiling.trace_summary import Gap, Operation, TraceSummary
from tests.report.test_markup import Reader


def test_shares_operators_gaps_and_memory_are_shown_and_a_torn_file_is_not(tmp_path):
    assert profile_lines(tmp_path) == []
    assert not profile_section(tmp_path)
    folder = tmp_path / "profile"
    folder.mkdir()
    trace = TraceSummary(
        rank=0, last_step=9, num_steps=2, seconds=2.0, computing=1.0, communication=0.5, cpu_overhead=0.3, idle=0.2,
        operators=(Operation(name="aten::mm<x>", seconds=0.5, calls=3),),
        gaps=(Gap(seconds=0.1, after="a", before="b"),),
    )  # fmt: skip
    (folder / "summary_rank0.json").write_text(json.dumps(trace.to_json()))
    (folder / "summary_rank1.json").write_text('{"rank": 1}')
    sizes = {kind: [0, 0] for kind in MEMORY_KINDS} | {"activations": [1024, 2048]}
    memory = {"rank": 0, "step": 9, "device": "cpu", "seconds": [0.0, 0.1], "bytes_of": sizes}
    peak = {kind: max(size) for kind, size in sizes.items()}
    (folder / "memory_rank0.json").write_text(json.dumps({**memory, "peak": peak}))
    lines = "\n".join(profile_lines(tmp_path))
    assert "computing 50.0%, communication 25.0%, CPU overhead 15.0%, idle gaps 10.0%" in lines
    assert "250.000      1.5   25.0%" in lines
    assert "activations 2.0KB" in lines
    assert "parameters" not in lines, "it has none"
    page = Reader(profile_section(tmp_path))
    assert "aten::mm<x>" in page.text
    assert any("memory by kind over step 9" in str(each.get("aria-label")) for _, each in page.tags)
