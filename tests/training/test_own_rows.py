import pytest
import torch

from lmtrain import callbacks
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.training.own_rows import RowsDataModule
from lmtrain.training.trainer import make_trainer
from tests.training.short_run import StopAfter, tiny_module


class Lines:
    """Rows in an order of their own, readable again."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def fit(folder, rows, *, steps, checkpoint=None, save_to=None):
    stop = StopAfter(steps, save_to)
    log = callbacks.StepLog(every_steps=1)
    trainer = make_trainer(
        strategy="auto", precision="32-true", accelerator="cpu", folder=folder, callbacks=[stop, log]
    )
    data = RowsDataModule(rows, micro_batch_sequences=4)
    trainer.fit(tiny_module(total_steps=10), datamodule=data, ckpt_path=checkpoint, weights_only=True)
    return stop.batches


@pytest.mark.parametrize("kind", [list, Lines])
def test_rows_are_read_again_and_a_resumed_run_goes_on_with_its_own(kind, tmp_path):
    rows = [[(row + column) % 257 for column in range(17)] for row in range(6)]
    whole = fit(tmp_path, kind(rows), steps=6)
    fit(tmp_path, kind(rows), steps=3, save_to=tmp_path / "step_00000003")
    rest = fit(tmp_path, kind(rows), steps=6, checkpoint=tmp_path / "step_00000003")
    assert all(torch.equal(one, other) for one, other in zip(whole[3:], rest, strict=True))
    read = [tuple(row) for row in torch.cat(whole).tolist()]
    assert sorted(read[:6]) == sorted(map(tuple, rows)), "each once before any is read again"


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="more than once"):
        RowsDataModule(iter([[1, 2]]))
    for rows, pattern in (([], "at least one row"), ([[1, 2], [1]], "one length")):
        with pytest.raises(DataError, match=pattern):
            fit(tmp_path, rows, steps=1)
