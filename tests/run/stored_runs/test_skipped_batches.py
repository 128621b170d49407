"""Spikes noted in a run's folder; tests/faults/test_rewind.py goes back in a real run."""

import json
import shutil
from types import SimpleNamespace

import pytest

from lmtrain.accounting.batches import BatchPlan
from lmtrain.errors import Diverged, GoBack
from lmtrain.run.stored_runs.skipped_batches import FILE, read_spikes, skip_spike, without_skipped

BATCH = BatchPlan(context_tokens=8, sequences_per_micro_step=4, accumulation_micro_steps=1, num_ranks=1)


def spike(step: int, *, num_batches: int = 1, most: int = 2) -> GoBack:
    return GoBack(step=step, loss=float("nan"), gradient_norm=9.0, num_batches=num_batches, most=most)


def test_each_spike_leaves_out_the_batch_of_its_step_and_sets_later_checkpoints_aside(tmp_path):
    job = SimpleNamespace(folder=tmp_path, root=str(tmp_path.parent), overrides=[], save=lambda path: None)
    for step in (3, 6):
        (tmp_path / f"checkpoints/step_{step:08}").mkdir(parents=True)
    line = skip_spike(job, BATCH, spike(6, num_batches=2))
    assert "back to the checkpoint before it, without windows 20 to 27" in line
    names = sorted(path.name.partition("_0")[0] for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["left_step", "step"]
    batch = without_skipped(BATCH, tmp_path)
    assert batch.left_out == (5, 6)
    shutil.rmtree(tmp_path / "checkpoints")
    line = skip_spike(job, batch, spike(6))  # the same step, with the batch after those
    assert "back to the start, as there is no checkpoint, without windows" in line
    assert without_skipped(BATCH, tmp_path).left_out == (5, 6, 7)
    with pytest.raises(Diverged, match=r"gone back 2 times already .* windows 32 to 35"):
        skip_spike(job, without_skipped(BATCH, tmp_path), spike(6))
    assert [one["loss"] for one in read_spikes(tmp_path)] == ["nan", "nan"]
    json.loads((tmp_path / FILE).read_text())
