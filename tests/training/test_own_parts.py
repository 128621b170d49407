"""A person's own modules, models and rows."""

import inspect
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from lmtrain import callbacks
from lmtrain.errors import ConfigurationError
from lmtrain.inference.engine import TextEngine
from lmtrain.inference.generation import Request
from lmtrain.inference.sampling import Sampling, generate
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.base import LanguageModel
from lmtrain.models.own_model import LogitsModel
from lmtrain.training.own_rows import RowsDataModule
from lmtrain.training.trainer import make_trainer
from tests import tiny
from tests.callbacks.conftest import dataset_folder as dataset_folder
from tests.callbacks.test_stock_trainer import PlainModule, TwoOptimizers, loader
from tests.training.short_run import StopAfter, data_module, tiny_module


def stock(module: pl.LightningModule, folder: Path) -> pl.LightningModule:
    """Train a module as Lightning does."""
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, default_root_dir=folder)  # fmt: skip
    trainer.fit(module, loader(10))
    return module


@pytest.mark.parametrize("kind", [PlainModule, TwoOptimizers], ids=["one argument", "manual, two optimizers"])
def test_it_trains_as_in_a_stock_trainer(kind: type[PlainModule], tmp_path: Path) -> None:
    module = kind()
    budget = callbacks.TokenBudget(steps=10)
    log = callbacks.StepLog(every_steps=1)
    trainer = make_trainer(
        strategy="auto", precision="32-true", accelerator="cpu", folder=tmp_path, callbacks=[log, budget]
    )
    trainer.fit(module, loader(10))
    expected = stock(kind(), tmp_path)
    assert module.losses == expected.losses  # pyright: ignore[reportAttributeAccessIssue]
    for name, value in expected.state_dict().items():
        assert torch.equal(value, module.state_dict()[name])


@pytest.mark.parametrize("is_stock", [True, False], ids=["stock Trainer", "a run's"])
def test_lightnings_own_callbacks_see_our_module(tmp_path: Path, data_folder: Path, is_stock: bool) -> None:
    best = ModelCheckpoint(tmp_path, monitor="train/loss", every_n_train_steps=1, save_top_k=1)
    stopping, rates = EarlyStopping("train/loss", patience=10**6), LearningRateMonitor("step")
    ours: list[Any] = [best, stopping, rates]
    if is_stock:
        settings: dict[str, Any] = {"max_steps": 4, "use_distributed_sampler": False, "enable_progress_bar": False}
        trainer = pl.Trainer(accelerator="cpu", callbacks=ours, logger=CSVLogger(tmp_path), **settings)
    else:
        trainer = make_trainer(
            strategy="auto", precision="32-true", accelerator="cpu", folder=tmp_path, callbacks=[*ours, StopAfter(4)]
        )
    trainer.log_every_n_steps = 1
    trainer.fit(tiny_module(total_steps=4), datamodule=data_module(data_folder))
    assert float(trainer.callback_metrics["train/loss"]) > 0
    assert best.best_model_score is not None
    assert best.best_model_path
    assert "lr-" in (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()


class Net(nn.Module):
    """Scores the next id from the last."""

    def __init__(self, vocab_size: int = 257) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = hidden + layer(hidden).tanh()
        return self.head(hidden)


class RunningMean(Net):
    """Scores the next id from all earlier ones."""

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embedding(ids).cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None]
        return self.head(hidden)


class Raw(nn.Module):
    """Has a parameter that nothing initializes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


def test_loss_and_gradients_are_torchs() -> None:
    torch.manual_seed(0)
    net = Net()
    model: LanguageModel = LogitsModel(net, vocab_size=257, max_context_tokens=16)
    ids, targets = torch.randint(257, (2, 8)), torch.randint(257, (2, 8))
    total = model(ids, targets, CrossEntropy())
    expected = nn.functional.cross_entropy(net(ids).flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(total.objective, expected)
    assert [*model.blocks] == [*net.layers]
    assert model.shape().num_parameters == sum(one.numel() for one in net.parameters())


def test_a_text_goes_on_as_the_whole_module_says() -> None:
    torch.manual_seed(0)
    model = LogitsModel(RunningMean(), vocab_size=257, max_context_tokens=12)
    prompts = [torch.randint(257, (length,)).tolist() for length in (3, 7)]
    greedy = Sampling(temperature=0)
    requests = [Request(prompt=prompt, num_new_tokens=8, sampling=greedy, slides=True) for prompt in prompts]
    written = TextEngine(model, [b""] * 257).write(requests)
    for prompt, text in zip(prompts, written, strict=True):
        expected = generate(model, torch.tensor([prompt]), num_new_tokens=8, sampling=greedy)
        assert text.tokens == expected[0].tolist()


def test_other_shapes_and_losses_are_refused() -> None:
    model = LogitsModel(Net(), vocab_size=300, max_context_tokens=16)
    with pytest.raises(ConfigurationError, match=r"model\.vocab_size"):
        model(torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(ConfigurationError, match="cross_entropy"):
        _ = model.output_head().weight


@pytest.mark.slow
def test_a_run_trains_it_from_a_config_and_writes_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import lmtrain

    source = f"import torch\nfrom torch import Tensor, nn\n\n{inspect.getsource(Net)}"
    (tmp_path / "my_package.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    conf = tmp_path / "conf" / "model"
    conf.mkdir(parents=True)
    (conf / "mine.yaml").write_text(
        "# My net\n_target_: lmtrain.models.own_model.LogitsModel\n"
        "module: {_target_: my_package.Net, vocab_size: 257}\n"
        "vocab_size: 257\nmax_context_tokens: ${batch.context_tokens}\n"
    )
    words = [*tiny.DATA, *tiny.BATCH, *tiny.QUIET, "model=mine", "budget.steps=3", "loss=cross_entropy"]
    words = [word for word in words if "text_samples" not in word and "vocab_size" not in word]
    run = lmtrain.train(
        *words, "callbacks.text_samples=null", allow_targets=["my_package."], config_dir=tmp_path / "conf"
    )
    assert len(run.losses) >= 1
    talk = f"lmtrain chat {run.folder} --allow-target my_package."
    assert talk in capfd.readouterr().out
    assert run.load(allow_targets=["my_package."]).generate("def", num_new_tokens=4, temperature=0)


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
