"""What the Trainer and every default callback cost over a bare loop: the same model, batches and optimizer.

Both take turns inside one process: a few steps of the Trainer, as many of a hand-written loop on a twin model, and so
on, each measured in CPU seconds of this process (time.process_time), so that a busy machine hurts both alike.

    python benchmarks/overhead.py                        # about a minute
    python benchmarks/overhead.py --rounds 40 model.width=256 compile=model
"""

import argparse
import copy
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from typing_extensions import override

from lmtrain.composition.build import Run, build_run
from lmtrain.composition.compose import compose_config
from lmtrain.composition.job import Job
from lmtrain.composition.run import quiet_libraries
from lmtrain.composition.start import check_config
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import RunLog
from lmtrain.training.module import CausalLMModule

SETTINGS = [
    "data=synthetic",
    "tokenizer=byte_level",
    "tokenizer.vocab_size=4096",
    "optimizer=adamw",
    "schedule=constant",
    "precision=fp32",
    "compile=none",
    "logger=none",
    "gradient_clip_norm=1.0",
    "batch.tokens_per_step=1024",
    "callbacks.validation.num_passes=null",
    "callbacks.validation.max_tokens=200",
    "callbacks.checkpoint.every_seconds=null",
    "callbacks.text_samples.num_new_tokens=1",
    "callbacks.progress.every_seconds=1000",
]


class BareLoop(pl.Callback):
    """Take turns with the Trainer: after every `turn_steps` of its steps, train a twin as many by hand."""

    def __init__(self, *, turn_steps: int, warm_up_turns: int) -> None:
        self.trainer_seconds: list[float] = []  # per step, one value a turn
        self.bare_seconds: list[float] = []
        self._turn_steps = turn_steps
        self._warm_up_turns = warm_up_turns
        self._started = 0.0

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, CausalLMModule)
        twin = copy.deepcopy(pl_module.language_model)  # leaves out what was compiled
        self._model = pl_module._transforms.compile(twin)  # noqa: SLF001
        self._optimizer: Any = pl_module._optimizer(self._model)  # noqa: SLF001
        self._parameters = list(self._model.parameters())
        self._batches = iter(trainer.datamodule.train_dataloader())  # pyright: ignore[reportAttributeAccessIssue]
        self._loss = CrossEntropy()
        self._started = time.process_time()

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self._turn_steps:
            return
        self.trainer_seconds.append((time.process_time() - self._started) / self._turn_steps)
        started = time.process_time()
        for _ in range(self._turn_steps):
            self._step()
        self.bare_seconds.append((time.process_time() - started) / self._turn_steps)
        self._started = time.process_time()

    def _step(self) -> None:
        tokens = next(self._batches).long()
        total = self._model(tokens[:, :-1], tokens[:, 1:], self._loss)
        self._optimizer.zero_grad()
        (total.objective / total.num_tokens).backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()

    def result(self) -> dict[str, float]:
        """Return milliseconds a step of each (medians), and the median of the turns' ratios."""
        trainer = self.trainer_seconds[self._warm_up_turns :]
        bare = self.bare_seconds[self._warm_up_turns :]
        ratios = [ours / theirs for ours, theirs in zip(trainer, bare, strict=True)]
        return {
            "trainer_milliseconds": 1e3 * statistics.median(trainer),
            "bare_milliseconds": 1e3 * statistics.median(bare),
            "difference_milliseconds": 1e3 * statistics.median(a - b for a, b in zip(trainer, bare, strict=True)),
            "ratio": statistics.median(ratios),
            "ratio_lower_quartile": statistics.quantiles(ratios, n=4)[0],
            "ratio_upper_quartile": statistics.quantiles(ratios, n=4)[2],
            "turns": len(ratios),
        }


def build(words: list[str], *, steps: int, folder: Path) -> Run:
    """Build the run that a command line describes, in a folder of its own."""
    words = [*SETTINGS, "budget=none", f"budget.steps={steps}", f"data.folder.root={folder / 'data'}", *words]
    config = check_config(compose_config(words), allowed=[])
    job = Job(config=config, overrides=words, name="overhead", root=str(folder / "runs"))
    RunFolder(job.folder, root=Path(job.root)).create()
    return build_run(job, rank=0, log=RunLog(job.folder))


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24, help="turns of the Trainer and of the bare loop each")
    parser.add_argument("--turn-steps", type=int, default=10, help="optimizer steps of one turn")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    arguments, words = parser.parse_known_args()
    torch.set_num_threads(arguments.threads)
    quiet_libraries()
    bare = BareLoop(turn_steps=arguments.turn_steps, warm_up_turns=3)
    with tempfile.TemporaryDirectory() as temporary:
        run = build(words, steps=arguments.turn_steps * arguments.rounds, folder=Path(temporary))
        run.trainer.callbacks.append(bare)  # pyright: ignore[reportAttributeAccessIssue]  # a list, always
        run.trainer.fit(run.module, datamodule=run.datamodule)
    print(json.dumps({"torch": torch.__version__, "threads": arguments.threads, **bare.result()}, indent=1))


if __name__ == "__main__":
    main()
