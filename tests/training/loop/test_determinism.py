"""Settings are checked one by one; that two runs are equal is tested on whole runs, in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from lmtrain.tracking.run_log import read_points
from lmtrain.training.process_settings import be_deterministic
from lmtrain.training.trainer import make_trainer
from tests import forked

ROOT = Path(__file__).parents[3]
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


def train(root: Path, name: str, *words: str) -> list[tuple[int, float]]:
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


def weights(root: Path, name: str) -> dict[str, torch.Tensor]:
    return torch.load(root / name / "checkpoints" / "step_00000006" / "state.pt", weights_only=True)["state_dict"]


@pytest.mark.slow
def test_two_runs_are_equal_to_the_last_bit_and_another_seed_differs(tmp_path: Path):
    seeds = {"one": 1, "same": 1, "other": 2}
    one, same, other = (train(tmp_path, name, f"seed={seed}", "deterministic=true") for name, seed in seeds.items())
    assert len(one) == 6
    assert one == same
    assert one != other
    mine = weights(tmp_path, "one")
    assert all(torch.equal(value, weights(tmp_path, "same")[name]) for name, value in mine.items())
    assert not all(torch.equal(value, weights(tmp_path, "other")[name]) for name, value in mine.items())


@pytest.mark.usefixtures("_process_is_left_as_found")
def test_compiled_gradients_of_an_embedding_on_a_cpu_have_one_order_of_sums(tmp_path: Path):
    make_trainer(strategy="auto", precision="32-true", accelerator="cpu", folder=tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        weights = torch.zeros(16, 64, requires_grad=True)
        tokens, factors = torch.randint(16, (4, 512)), torch.randn(4, 512, 64)
        score = torch.compile(lambda: (F.embedding(tokens, weights) * factors).sum())
        gradients = [torch.autograd.grad(score(), weights)[0] for _ in range(20)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, gradients[0]) for one in gradients)
