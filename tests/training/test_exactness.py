"""The same numbers every time: deterministic kernels, precisions."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from torch.nn import functional as F

from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.optim.adamw import adamw
from lmtrain.precision.policy import bf16_mixed, bf16_true, fp16_mixed, fp32
from lmtrain.tracking.run_log import read_points
from lmtrain.training.module import ModelTransforms
from lmtrain.training.precision_plugin import PrecisionPlugin
from lmtrain.training.process_settings import be_deterministic
from lmtrain.training.trainer import make_trainer
from tests import forked
from tests.training import short_run
from tests.training.short_run import train, weights

ROOT = Path(__file__).parents[2]
SMALL = ["tokenizer=byte_level", "model.width=32", "model.num_bigram_buckets=64", "batch.context_tokens=32"]


@pytest.fixture
def _process_is_left_as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_DETERMINISTIC"):
        monkeypatch.setenv(name, "")
    cudnn, fills = torch.backends.cudnn, torch.utils.deterministic.fill_uninitialized_memory
    before = cudnn.deterministic, cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(False)
    cudnn.deterministic, cudnn.benchmark = before
    torch.utils.deterministic.fill_uninitialized_memory = fills
    if (inductor := sys.modules.get("torch._inductor.config")) is not None:
        inductor.deterministic = False


@pytest.mark.usefixtures("_process_is_left_as_found")
def test_an_operation_without_a_deterministic_kernel_is_refused():
    be_deterministic()
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        torch.nn.functional.max_unpool2d(torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1, dtype=torch.int64), 2)


def train_by(root: Path, name: str, *words: str) -> list[tuple[int, float]]:
    command = ["debug=tiny", "data=synthetic", "budget.steps=6"]
    command += [*SMALL, "batch.tokens_per_step=128", f"run.root={root}", f"run.name={name}"]
    command += [f"data.folder.root={root}/data", *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "2"}
    if name == "same":  # its own memory, and its own order of sets
        finished = subprocess.run(
            [sys.executable, "train.py", *command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    else:
        finished = forked.run(ROOT / "train.py", command, folder=ROOT, environment=environment)
    assert finished.returncode == 0, finished.stderr[-3000:]
    points = read_points(root / name / "metrics.jsonl")
    return [(point.step, point.metrics["train/loss"]) for point in points if "train/loss" in point.metrics]


def weights_by(root: Path, name: str) -> dict[str, torch.Tensor]:
    return torch.load(root / name / "checkpoints" / "step_00000006" / "state.pt", weights_only=True)["state_dict"]


@pytest.mark.slow
def test_two_runs_are_equal_to_the_last_bit(tmp_path: Path):
    one, same = (train_by(tmp_path, name, "deterministic=true") for name in ("one", "same"))
    assert len(one) == 6
    assert one == same
    mine = weights_by(tmp_path, "one")
    assert all(torch.equal(value, weights_by(tmp_path, "same")[name]) for name, value in mine.items())


@pytest.mark.usefixtures("_process_is_left_as_found")
def test_compiled_gradients_of_an_embedding_on_a_cpu_have_one_order_of_sums(tmp_path: Path):
    make_trainer(strategy="auto", precision="32-true", accelerator="cpu", folder=tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        weights_by = torch.zeros(16, 64, requires_grad=True)
        tokens, factors = torch.randint(16, (4, 512)), torch.randn(4, 512, 64)
        score = torch.compile(lambda: (F.embedding(tokens, weights_by) * factors).sum())
        gradients = [torch.autograd.grad(score(), weights_by)[0] for _ in range(20)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, gradients[0]) for one in gradients)


@pytest.fixture
def fit(data_folder, tmp_path, monkeypatch):
    """Train a few steps in a precision, with two micro-batches a step."""

    def run(precision, *, plugin=None, **settings):
        plugin = plugin or PrecisionPlugin(precision, device_type="cpu")
        monkeypatch.setattr(
            short_run, "make_trainer", lambda **options: make_trainer(**options | {"precision": plugin})
        )
        defaults = {
            "micro_batch_sequences": 2,
            "optimizer": partial(adamw, lr=1e-2),
            "scales_loss": precision.scales_loss,
        }
        transforms = ModelTransforms(precision=partial(precision.prepare, strategy_casts=False))
        return train(data_folder, tmp_path, transforms=transforms, **defaults | settings)[0]

    return run


class Breaks(pl.Callback):
    """Makes a gradient of one step, counted from 1, infinite, and remembers the weights after every step."""

    def __init__(self, step):
        self.step, self.after = step, []

    def on_after_backward(self, trainer, pl_module):
        if trainer.global_step + 1 == self.step:
            gradient = next(pl_module.parameters()).grad
            assert gradient is not None
            gradient.fill_(torch.inf)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx % 2:
            self.after.append(weights(pl_module))


@pytest.mark.parametrize(
    "optimizer", [partial(adamw, lr=1e-2), lambda model: torch.optim.SGD(model.parameters(), lr=0.5)]
)
def test_fp16_skips_a_step_that_is_not_finite_and_halves_the_scale(fit, optimizer):
    plugin, breaks = PrecisionPlugin(fp16_mixed(), device_type="cpu"), Breaks(step=2)
    module = fit(fp16_mixed(), plugin=plugin, steps=3, optimizer=optimizer, extra=breaks)
    first, second, third = breaks.after
    assert torch.equal(first, second)
    assert third.isfinite().all()
    assert not torch.equal(second, third)
    assert plugin.state_dict()["scale"] == 2.0**15
    assert [record.was_skipped for record in module.step_metrics.drain()] == [False, True, False]


@pytest.mark.parametrize("precision", [fp16_mixed(), bf16_mixed(), bf16_true()])
def test_gradients_are_unscaled_before_they_are_clipped_and_logged(fit, precision):
    expected = fit(fp32(), steps=3, gradient_clip_norm=0.1).step_metrics.drain()
    found = fit(precision, steps=3, gradient_clip_norm=0.1).step_metrics.drain()
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.loss, ours.gradient_norm) == pytest.approx((theirs.loss, theirs.gradient_norm), rel=2e-2)


@pytest.mark.parametrize("precision", [fp16_mixed(), bf16_mixed(), bf16_true()])
def test_a_resumed_run_goes_on_to_the_last_bit(fit, precision, tmp_path):
    whole = fit(precision, steps=4)
    saved = tmp_path / "saved.ckpt"
    fit(precision, steps=2, save_to=saved)
    plugin = PrecisionPlugin(precision, device_type="cpu")
    resumed = fit(precision, plugin=plugin, steps=4, checkpoint=saved)
    assert torch.equal(weights(resumed), weights(whole))
    assert {parameter.dtype for parameter in resumed.parameters()} == {
        torch.bfloat16 if precision.facts.name == "bf16_true" else torch.float32
    }


@pytest.mark.slow
def test_bf16_ends_within_a_hundredth_of_fp32(fit):
    settings = {"steps": 300, "total_steps": 300, "loss": ChunkedCrossEntropy(), "micro_batch_sequences": 4}
    exact, mixed = (
        sum(record.loss for record in fit(precision, **settings).step_metrics.drain()[-50:]) / 50
        for precision in (fp32(), bf16_mixed())
    )
    assert mixed == pytest.approx(exact, rel=1e-2)
