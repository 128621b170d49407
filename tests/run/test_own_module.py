"""A LightningModule and rows of a person's own, from conf/ of their own folder, in a run."""

import json
from pathlib import Path

import pytest
import torch

import lmtrain
from lmtrain.cli.main import serve
from lmtrain.data.shards import open_dataset
from lmtrain.errors import ConfigurationError
from lmtrain.run.stored_runs.loaded_models import model_to_run
from tests import tiny

CODE = '''
import lightning.pytorch as pl
import torch
from torch import Tensor, nn


class TwoRates(pl.LightningModule):
    """Manual optimization: SGD for the tables, AdamW for the rest."""

    def __init__(self, model: nn.Module, *, table_lr: float = 1.0) -> None:
        super().__init__()
        self.language_model, self.automatic_optimization, self.table_lr = model, False, table_lr

    def training_step(self, batch: Tensor) -> None:
        loss = nn.functional.cross_entropy(self.language_model(batch[:, :-1].long()).mT, batch[:, 1:].long())
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()
        self.log("train/loss", loss)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        tables = [part.weight for part in self.language_model.modules() if isinstance(part, nn.Embedding)]
        others = [each for each in self.language_model.parameters() if not any(each is table for table in tables)]
        return [torch.optim.SGD(tables, self.table_lr), torch.optim.AdamW(others, 0.01)]
'''
OPTION = """# SGD for the tables, AdamW for the rest
_target_: my_modules.TwoRates
_partial_: true
table_lr: 0.5
"""
WORDS = [*tiny.TINY, "--config-dir", "conf", "module=two_rates", "run.name=own"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf" / "module").mkdir(parents=True)
    (tmp_path / "conf" / "module" / "two_rates.yaml").write_text(OPTION)
    (tmp_path / "my_modules.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def train(*words: str) -> int:
    return serve("train", [*WORDS, *words], program="lmtrain train")


def test_an_own_module_trains_on_the_run_s_rows_and_its_model_is_loaded(tmp_path: Path) -> None:
    assert train("--allow-target", "my_modules.", "budget.steps=20") == 0
    run = tmp_path / "runs" / "own"
    losses = losses_of(run)
    assert losses[20] < losses[1]
    module = torch.load(next((run / "checkpoints").glob("step_*")) / "state.pt", weights_only=True)
    assert len(module["optimizer_states"]) == 2
    weights = model_to_run(run, device="cpu").model.state_dict()
    assert all(torch.equal(weights[name], module["state_dict"][f"language_model.{name}"]) for name in weights)


def losses_of(run: Path) -> dict[int, float]:
    """Return the training loss of each step."""
    points = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {point["step"]: loss for point in points if (loss := point["metrics"].get("train/loss")) is not None}


def test_a_step_of_two_optimizers_is_one_batch_and_a_resume_goes_on_with_the_next(tmp_path: Path) -> None:
    allowed = ("--allow-target", "my_modules.", "run.log_every_steps=1")
    assert train(*allowed, "budget.steps=8", "run.name=whole") == 0
    assert train(*allowed, "budget.steps=4") == 0
    assert train(*allowed, "budget.steps=8") == 0
    resumed, whole = (losses_of(tmp_path / "runs" / name) for name in ("own", "whole"))
    assert list(resumed) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert resumed == whole


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "module._target_=my_modules.TwoRates is not allowed"),
        (["--allow-target", "my_modules.", "batch.micro_batch_sequences=2"], "batch.micro_batch_sequences: must be 8"),
        (["--allow-target", "my_modules.", "strategy=fsdp"], "strategy: must be one of a whole model"),
    ],
)
def test_what_an_own_module_cannot_be_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("budget.steps=2", *words) == 2
    assert message in capsys.readouterr().err


ROWS = """
class Rows:
    def __init__(self, num_rows):
        self.num_rows = num_rows

    def __iter__(self):
        for row in range(self.num_rows):
            yield [(row + column) % 250 for column in range(40)]
"""
OF_ROWS = """defaults: [rows]
folder:
  rows: {_target_: my_rows.Rows, num_rows: 60}
"""


def test_own_rows_of_ids_are_trained_on_from_an_own_option_and_from_python(tmp_path: Path) -> None:
    (tmp_path / "my_rows.py").write_text(ROWS)
    (tmp_path / "conf" / "data").mkdir()
    (tmp_path / "conf" / "data" / "mine.yaml").write_text(OF_ROWS)
    words = [*tiny.MODEL, *tiny.BATCH, *tiny.QUIET, "data=mine", "tokenizer=byte_level", "budget.steps=2"]
    own = {"allow_targets": ["my_rows."], "config_dir": "conf"}
    run = lmtrain.train(lmtrain.compose(*words, "run.name=rows", **own))
    assert len(run.losses) >= 1
    assert run.status == "FINISHED"
    dataset = open_dataset(*(tmp_path / "data").glob("rows-*"))
    train = dataset.split("train")
    assert (train.num_tokens, train.window(0, 3).tolist()) == (54 * 41, [0, 1, 2])
    with pytest.raises(ConfigurationError, match=r"my_rows\.Rows is not allowed"):
        lmtrain.compose(*words, config_dir="conf")
    with pytest.raises(ConfigurationError, match=r"held_out_every must be at least 3, got 2"):
        lmtrain.train(*words, "run.name=few", "data.folder.held_out_every=2", **own)
