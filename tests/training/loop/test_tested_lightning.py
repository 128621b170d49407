"""A Lightning that nobody tested trains with its own loop, and says so."""

import lightning
import pytest
import torch
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from lmtrain.training.step_loop import StepLoop
from tests.training.short_run import train, weights


@pytest.mark.parametrize("version", ["2.7.0", "2.5.9", "3.0.0"])
def test_another_version_runs_its_own_loop_says_so_in_one_line_and_trains_the_same(
    data_folder, tmp_path, monkeypatch, caplog, version
):
    ours, _ = train(data_folder, tmp_path, steps=2, micro_batch_sequences=2, gradient_clip_norm=0.1)
    assert type(ours.trainer.fit_loop.epoch_loop) is StepLoop
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    monkeypatch.setattr(lightning, "__version__", version)
    theirs, _ = train(data_folder, tmp_path, steps=2, micro_batch_sequences=2, gradient_clip_norm=0.1)
    assert type(theirs.trainer.fit_loop.epoch_loop) is _TrainingEpochLoop
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"Lightning {version} runs its own training loop: ours was tested with 2.6.x, and saves Python in a step."
    ]
    assert torch.equal(weights(ours), weights(theirs))
    assert ours.step_metrics.drain() == theirs.step_metrics.drain()
