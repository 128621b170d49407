import gzip
import json

from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.training.profilers import TorchTrace
from lmtrain.training.trace_summary import TraceSummary


def test_the_active_steps_alone_are_in_the_trace_and_the_weights_are_the_same(make_run):
    plain = make_run(steps=6, name="plain")
    expected = plain.fit(TokenBudget(context=plain.context))
    run = make_run(steps=6)
    trace = TorchTrace(wait_steps=1, warm_up_steps=1, active_steps=2, context=run.context)
    trainer = run.fit(TokenBudget(context=run.context), trace)
    folder = run.context.folder / "profile"
    assert sorted(path.name for path in folder.iterdir()) == ["summary_rank0.json", "trace_rank0.json.gz"]
    found = TraceSummary.from_json(json.loads((folder / "summary_rank0.json").read_text()))
    assert (found.last_step, found.num_steps) == (4, 2)
    assert sum(one.calls for one in found.operators if one.name == "aten::embedding") in (0, 2)
    events = json.loads(gzip.decompress((folder / "trace_rank0.json.gz").read_bytes()))["traceEvents"]
    assert len({event["name"] for event in events if event["name"].startswith("ProfilerStep#")}) == 2
    assert sum(event["name"] == "aten::embedding" for event in events) == 2
    parts = found.computing + found.communication + found.cpu_overhead + found.idle
    assert abs(parts - found.seconds) < 1e-6
    assert not run.context.events.is_profiled
    for mine, other in zip(trainer.model.parameters(), expected.model.parameters(), strict=True):
        assert mine.equal(other)
