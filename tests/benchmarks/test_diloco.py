"""DiLoCo beside DDP: every trial composes, a run's curve has its bytes, and the page its ratios."""

import json

import pytest

from benchmarks.harness.diloco_page import Kind, page
from benchmarks.questions import diloco
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.run_config import read_config

pytestmark = pytest.mark.benchmarks

DDP, INT8 = Kind("muon_plain", 0, "fp32"), Kind("muon_plain", 30, "int8")


def test_every_trial_is_a_run_of_two_ranks_that_differs_in_its_name():
    trials = [diloco.Trial(kind=kind, seed=seed, steps=300) for kind in diloco.kinds() for seed in (1, 2)]
    assert len({trial.name for trial in trials}) == len(trials) == 2 * 14
    for kind in (DDP, INT8):
        trial = diloco.Trial(kind=kind, seed=1, steps=300)
        setting = planned_setting(read_config(compose_config(trial.words())))
        assert (setting.num_ranks, setting.spread.meets_every_steps) == (2, kind.every_steps or None)


@pytest.fixture
def run(tmp_path):
    """A run that validated at three steps, and counted its bytes at two of them."""

    def write(counted):
        rows = [(0, {"validation/bits_per_byte": 4.0})]
        rows += [(step, {"communication/sent_bytes": num_bytes}) for step, num_bytes in counted.items()]
        rows += [(step, {"validation/bits_per_byte": 4.0 - step / 20}) for step in (10, 20)]
        lines = [json.dumps({"step": step, "tokens": 1024 * step, "metrics": metrics}) for step, metrics in rows]
        (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
        (tmp_path / "plan.json").write_text(json.dumps({"communication": {"bytes_per_step": 7}}))
        return tmp_path

    return write


@pytest.mark.parametrize(("counted", "sent"), [({}, [0, 70, 140]), ({10: 0.0, 20: 5.0}, [0, 0, 5])])
def test_a_curve_has_counted_bytes_where_there_are_any_and_planned_ones_elsewhere(run, counted, sent):
    expected = [(1024 * step, num_bytes, 4.0 - step / 20) for step, num_bytes in zip((0, 10, 20), sent, strict=True)]
    assert diloco.curve(run(counted)) == expected


def test_the_page_tells_the_loss_beside_ddp_and_how_many_times_fewer_bytes():
    found = {
        DDP: [[(0, 0.0, 4.0), (1024, 90e6, 2.0)]],
        INT8: [[(0, 0.0, 4.0), (1024, 1e6, value)] for value in (2.1, 2.3)],
    }
    text = page(found, chart="plot.png", hardware="a machine")
    assert "| DDP, fp32 | 1 | 2.000 |  | 90.00 MB |  |" in text
    assert "| DiLoCo, H 30, int8 | 2 | 2.200 (2.100 to 2.300) | +0.200 | 1.00 MB | 90 |" in text
