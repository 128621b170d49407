"""A callback of your own in lmtrain's run: write this file as my_callbacks.py, name the class on the command line."""

import sys
from pathlib import Path

import lightning.pytorch as pl

import lmtrain

Path("my_callbacks.py").write_text('''
import lightning.pytorch as pl


class WeightNorm(pl.Callback):
    """Log the norm of all weights every few steps, into metrics.jsonl and every tracker."""

    def __init__(self, *, every_steps: int, context) -> None:
        self.every_steps, self.context = every_steps, context

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if trainer.global_step % self.every_steps == 0:
            norm = sum(weight.square().sum() for weight in pl_module.parameters()).sqrt()
            self.context.append(trainer.global_step, {"weights/norm": float(norm)})
''')
sys.path.insert(0, ".")
assert issubclass(__import__("my_callbacks").WeightNorm, pl.Callback)
run = lmtrain.train(
    "model=llama_micro", "compile=none", "logger=none", "callbacks.text_samples=null",
    "+callbacks.weight_norm._target_=my_callbacks.WeightNorm", "+callbacks.weight_norm.every_steps=4",
    allow_targets=["my_callbacks."], budget="20K", run={"name": "own-callback"},
)  # fmt: skip
for step, norm in run.curve("weights/norm"):
    print(f"step {step}: norm of the weights {norm:.3f}")
