"""Our callbacks in Lightning's own Trainer, with a person's own module: no run, no plan, no config."""

import json
import logging
import math
import signal
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lmtrain import callbacks
from lmtrain.errors import ConfigurationError, Diverged, EnvironmentProblem
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

BATCH, CONTEXT, VOCABULARY = 4, 8, 8  # every row is the same, since Lightning begins an epoch again
TOKENS = BATCH * CONTEXT


class PlainModule(pl.LightningModule):
    """A person's module: logits of the next id from the last."""

    def __init__(self, *, nan_at: int | None = None, spike_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(VOCABULARY, 6), nn.Linear(6, VOCABULARY))
        self.nan_at, self.spike_at = nan_at, spike_at
        self.losses: list[float] = []

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids)

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        ids = batch["input_ids"]
        loss = nn.functional.cross_entropy(self.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        step = self.trainer.global_step + 1
        factor = math.nan if step == self.nan_at else 1e4 if step == self.spike_at else 1.0
        loss = loss * factor
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: dict[str, Tensor]) -> None:
        self.log("val/loss", 1.0)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def loader(num_batches: int = 40) -> DataLoader[Any]:
    """Return batches of ids from a small text of one pattern."""
    ids = torch.arange(BATCH * num_batches * CONTEXT).reshape(-1, CONTEXT) % VOCABULARY
    return DataLoader([{"input_ids": row} for row in ids], batch_size=BATCH)


def fit(folder: Path, *ours: pl.Callback, module: pl.LightningModule | None = None, **settings: Any) -> pl.Trainer:
    """Train a plain module by a stock Trainer."""
    plain: dict[str, Any] = {"max_epochs": 1, "accelerator": "cpu", "logger": CSVLogger(folder / "csv"),
                             "enable_progress_bar": False, "enable_model_summary": False,
                             "enable_checkpointing": False, "log_every_n_steps": 1}  # fmt: skip
    ckpt_path = settings.pop("ckpt_path", None)
    trainer = pl.Trainer(default_root_dir=folder, callbacks=[*ours], **plain | settings)
    trainer.fit(module or PlainModule(), loader(), ckpt_path=ckpt_path)
    return trainer


def test_every_callback_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    module = PlainModule()
    ours = [
        callbacks.TimeBudget(seconds=1e6),
        callbacks.TokenBudget(tokens=20 * TOKENS),
        callbacks.StepLog(every_steps=2),
        callbacks.TrainingHealth(every_steps=2),
        callbacks.Divergence(every_steps=2),
        callbacks.Throughput(every_steps=5, peak_flops=1e12),
        callbacks.Heartbeat(every_seconds=0.1),
        callbacks.EarlyStopping(metric="val/loss", patience=100),
        callbacks.Communication(every_steps=3),
        callbacks.SilentCorruption(),
        callbacks.SystemMetrics(every_seconds=1e-9),
        callbacks.Checkpoint(every_steps=10),
        callbacks.Ledger(every_steps=5),
        callbacks.Progress(every_seconds=0.0),
        callbacks.GracefulStop(),
    ]
    trainer = fit(tmp_path, *ours, module=module)
    assert trainer.global_step == 20  # the budget of tokens
    shown = trainer.callback_metrics
    assert float(shown["train/loss"]) == pytest.approx(module.losses[-1])
    assert float(shown["train/lr"]) == 0.5
    assert float(shown["train/gradient_norm"]) > 0
    parameters = sum(one.numel() for one in module.parameters())
    speed = float(shown["speed/tokens_per_second"])
    assert float(shown["speed/mfu"]) == pytest.approx(6 * parameters * speed / 1e12)
    assert 0 < float(shown["speed/goodput"]) <= 1
    assert float(shown["memory/peak_bytes"]) > 0
    (csv,) = (tmp_path / "csv").rglob("metrics.csv")
    logged = csv.read_text()
    assert "speed/tokens_per_second" in logged
    assert sorted(path.name for path in (tmp_path / "lmtrain" / "checkpoints").iterdir()) == [
        "step_00000010",
        "step_00000020",
    ]
    assert (tmp_path / "lmtrain" / "events" / "rank0.beat").exists()
    assert 0 < float(shown["system/system_memory_usage_percentage"]) < 100
    assert "step 20/20 |" in capsys.readouterr().out, "the smaller budget's steps"
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_first_spent_budget_ends_the_training(tmp_path: Path) -> None:
    assert fit(tmp_path, callbacks.TokenBudget(tokens=9 * TOKENS, steps=3)).global_step == 3
    assert fit(tmp_path, callbacks.TokenBudget(tokens=3 * TOKENS, steps=9)).global_step == 3


def test_a_stopped_training_goes_on_from_our_checkpoint(tmp_path: Path) -> None:
    whole = PlainModule()
    fit(tmp_path / "whole", callbacks.TokenBudget(steps=12), module=whole)
    fit(tmp_path, callbacks.TokenBudget(tokens=6 * TOKENS), callbacks.Checkpoint())
    resumed = PlainModule()
    fit(
        tmp_path,
        callbacks.TokenBudget(tokens=12 * TOKENS),
        callbacks.Checkpoint(),
        module=resumed,
        ckpt_path=tmp_path / "lmtrain/checkpoints/step_00000006",
    )
    assert len(resumed.losses) == 6
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name])


def test_a_checkpoint_that_does_not_exist_is_missing(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    fit(tmp_path, callbacks.TokenBudget(steps=3), callbacks.Checkpoint(folder=kept))
    with pytest.raises(
        EnvironmentProblem, match=r"step_1: must be an existing folder.*Did you mean .*step_00000003\?$"
    ):
        fit(tmp_path, callbacks.Checkpoint(folder=kept), ckpt_path=f"{kept}/step_1")


def test_a_budget_may_be_a_text(tmp_path: Path) -> None:
    assert fit(tmp_path, callbacks.TokenBudget(tokens="0.1K")).global_step == 4
    with pytest.raises(ConfigurationError, match=r"callbacks\.token_budget\.steps.*many"):
        callbacks.TokenBudget(steps="many")


def test_losses_are_means_over_accumulated_micro_batches(tmp_path: Path) -> None:
    module = PlainModule()
    trainer = fit(tmp_path, callbacks.StepLog(every_steps=1), module=module, accumulate_grad_batches=4)
    assert trainer.global_step == 10
    assert float(trainer.callback_metrics["train/loss"]) == pytest.approx(sum(module.losses[-4:]) / 4)


def saved(folder: Path) -> list[int]:
    """Return the steps of the checkpoints of a fit in this folder."""
    return sorted(int(path.name.removeprefix("step_")) for path in (folder / "lmtrain/checkpoints").iterdir())


def test_the_shorter_last_group_of_an_epoch_is_a_step(tmp_path: Path) -> None:
    settings = {"accumulate_grad_batches": 3, "max_epochs": 2}  # 40 batches: 13 groups of 3, and one of 1
    fit(tmp_path, callbacks.Checkpoint(every_steps=14, keep_last=9), **settings)
    assert saved(tmp_path) == [14, 28]
    assert fit(tmp_path, callbacks.TokenBudget(steps=14), **settings).global_step == 14
    assert fit(tmp_path, callbacks.TokenBudget(tokens=40 * TOKENS), **settings).global_step == 14
    with pytest.raises(Diverged, match="Step 14 has loss nan"):
        fit(tmp_path, callbacks.TrainingHealth(every_steps=14), module=PlainModule(nan_at=14), **settings)


def test_a_risen_loss_and_a_flat_validation_end_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = PlainModule(spike_at=9)
    trainer = fit(tmp_path, callbacks.Divergence(most_rise=3, mean_steps=2, every_steps=1), module=module)
    assert trainer.global_step == 9
    stopping = callbacks.EarlyStopping(metric="val/loss", patience=2)
    trainer = pl.Trainer(max_epochs=9, callbacks=[stopping], logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, accelerator="cpu", default_root_dir=tmp_path)  # fmt: skip
    with caplog.at_level(logging.WARNING):
        trainer.fit(PlainModule(), loader(3), loader(1))
    assert trainer.current_epoch == 3
    assert "was the best of the last 3 validations" in stopping.reason


def test_a_signal_promises_nothing_where_nothing_is_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def receive(trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == 2:
            signal.raise_signal(signal.SIGTERM)

    stop = pl.callbacks.LambdaCallback(on_train_batch_end=receive)
    with caplog.at_level(logging.WARNING):
        fit(tmp_path, stop, callbacks.GracefulStop())
    assert caplog.messages[-1] == "SIGTERM: stopping after step 2."


class TwoOptimizers(PlainModule):
    """Optimizes by itself, with two optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: dict[str, Tensor]) -> Any:
        ids = batch["input_ids"]
        loss = nn.functional.cross_entropy(self.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizers: Any = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()
        self.losses.append(loss.item())

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.5) for part in self.model]


def test_a_module_with_two_optimizers_of_its_own(tmp_path: Path) -> None:
    module = TwoOptimizers()
    ours = [callbacks.StepLog(every_steps=1), callbacks.Throughput(), callbacks.TrainingHealth(), callbacks.Ledger()]
    trainer = fit(tmp_path, *ours, callbacks.TokenBudget(tokens=10 * TOKENS), module=module)
    assert len(module.losses) == 10
    assert float(trainer.callback_metrics["train/loss"]) == pytest.approx(module.losses[-1])


def test_a_last_step_that_is_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two steps a batch: of 40 batches in an epoch no estimate makes 80."""
    fit(
        tmp_path,
        callbacks.Checkpoint(every_steps=50, keep_last=9),
        callbacks.Progress(every_seconds=0.0),
        module=TwoOptimizers(),
    )
    assert saved(tmp_path) == [50, 80]
    *_, before, last = (line.partition(" | ") for line in capsys.readouterr().out.splitlines())
    assert before[0] == "step 78"
    assert last[0] == "step 80"
    assert last[2].startswith("1.3K tokens"), "40 batches"
    module = TwoOptimizers()
    nn.init.constant_(next(module.parameters()), math.nan)
    with pytest.raises(Diverged, match="Step 2 has loss nan"):
        fit(tmp_path, callbacks.TrainingHealth(every_steps=1000), module=module)


class ByteModule(PlainModule):
    """Logits over all ids of a byte-level tokenizer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Embedding(257, 6), nn.Linear(6, 257))


def test_a_validation_and_a_sample_of_a_person_s_module(tmp_path: Path) -> None:
    ids = torch.arange(BATCH * CONTEXT).reshape(BATCH, CONTEXT) % VOCABULARY
    targets = ids[:, 1:].clone()
    targets[0] = -100
    tokenizer, module = ByteLevelTokenizer(), ByteModule()
    ours = [
        callbacks.TokenBudget(steps=12),
        callbacks.Validation(batches=[(ids[:, :-1], targets)], tokenizer=tokenizer, every_steps=6),
        callbacks.TextSamples(tokenizer=tokenizer, prompt="ab", num_new_tokens=3, context_tokens=CONTEXT),
    ]
    trainer = fit(tmp_path, *ours, module=module)
    logits = module(ids[1:, :-1]).detach()
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[1:, 1:].flatten()).item()
    shown = trainer.callback_metrics
    assert float(shown["validation/loss"]) == pytest.approx(loss, rel=1e-5)
    assert float(shown["validation/bits_per_byte"]) == pytest.approx(loss / math.log(2), rel=1e-5), "a byte a token"
    assert float(shown["validation/num_bytes"]) == ids[1:, 1:].numel()
    (sample,) = map(json.loads, (tmp_path / "lmtrain/samples.jsonl").read_text().splitlines())
    assert (sample["step"], sample["prompt"]) == (12, "ab")
    assert sample["text"]
    assert module.training


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (lambda: callbacks.Push(repository="me/model"), "Push.*run of lmtrain"),
        (callbacks.RunManifest, "RunManifest.*run of lmtrain"),
        (callbacks.EvaluateAside, "EvaluateAside.*run of lmtrain"),
        (callbacks.Validation, "Validation.*batches= and tokenizer="),
        (callbacks.TextSamples, "TextSamples.*tokenizer="),
    ],
)
def test_a_callback_without_what_it_needs_is_refused(tmp_path: Path, make: Any, fix: str) -> None:
    with pytest.raises(ConfigurationError, match=fix):
        fit(tmp_path, make())
