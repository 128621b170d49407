"""A callback of your own, for a run and for any Lightning Trainer: my_callbacks.py, named on the command line."""

import sys
from pathlib import Path

import lmtrain

Path("my_callbacks.py").write_text('''
import torch

from lmtrain.training.context import RunCallback
from lmtrain.training.intervals import StepInterval


class WeightNorm(RunCallback):
    """Log the norm of all weights every few steps, into metrics.jsonl and every tracker."""

    def __init__(self, *, every_steps: int, context=None) -> None:
        super().__init__(context, step_interval=StepInterval(every_steps, key="callbacks.weight_norm.every_steps"))

    def on_due_step(self, trainer, pl_module) -> None:
        norm = torch.nn.utils.get_total_norm(list(pl_module.parameters()))
        self.run.append(trainer.global_step, {"weights/norm": float(norm)})
''')
sys.path.insert(0, ".")
run = lmtrain.train(
    "model=llama_micro", "compile=none", "logger=none", "callbacks.text_samples=null",
    "+callbacks.weight_norm._target_=my_callbacks.WeightNorm", "+callbacks.weight_norm.every_steps=4",
    allow_targets=["my_callbacks."], budget="20K", run={"name": "own-callback"},
)  # fmt: skip
for step, norm in run.curve("weights/norm"):
    print(f"step {step}: norm of the weights {norm:.3f}")
