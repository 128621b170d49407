"""Keep a run's plan, data and machine next to its results."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import lightning.pytorch as pl
import torch
from typing_extensions import override

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.tokenizers.base import TOKENIZER_FILE
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.tracking.atomic_files import write_json
from lmtrain.tracking.parameters import RESOLVED
from lmtrain.tracking.redaction import redact
from lmtrain.tracking.run_folder import DATA_OF_ATTEMPT, PHASES, RunFolder
from lmtrain.training.context import OnlyInRun, RunContext

ESTIMATE_TOLERANCE: Final = 0.05  # of the last step: plan.json is written again beyond it


class RunManifest(OnlyInRun):
    """Write plan.json with the run's choices, dataset.json and tokenizer/ of a run, and more of its newest attempt.

    It belongs to a run of lmtrain. Under a budget of time the plan's last step begins as an estimate: plan.json follows
    it in changes of a twentieth, and has the true one at the end.
    """

    def __init__(self, *, context: RunContext | None = None) -> None:
        super().__init__(context)
        self._written_steps = 0

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.context.is_main_process:
            return
        folder = self.context.folder
        attempt = (RunFolder(folder).attempts() or [folder])[-1]
        self._keep_tokenizer(folder / "tokenizer")
        self._write_plan()
        dataset = self.context.dataset
        data = {"data": str(dataset.folder.absolute())}
        RunFolder(folder).note(data)
        write_json(folder / "dataset.json", redact(dataset.manifest.to_json()))
        phases = getattr(trainer, "datamodule").placed_phases  # noqa: B009  Lightning's, and not in its types
        noted = {"fingerprint": dataset.manifest.fingerprint} | ({PHASES: phases} if len(phases) > 1 else {})
        write_json(attempt / DATA_OF_ATTEMPT, data | noted)
        write_json(attempt / "devices.json", describe_devices(trainer))

    @override
    def on_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        steps = self.context.last_step.steps
        if self.context.is_main_process and abs(steps - self._written_steps) > ESTIMATE_TOLERANCE * steps:
            with contextlib.suppress(EnvironmentProblem):  # a full disk does not end a run between saves
                self._write_plan()

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.context.is_main_process and self.context.last_step.seconds is not None:
            self._write_plan()

    def _keep_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer, over another one only where no checkpoint of the run knows that one's ids."""
        tokenizer = self.context.tokenizer
        is_known = (folder / TOKENIZER_FILE).is_file() and any(RunFolder(folder.parent).checkpoints_path.glob("step_*"))
        if is_known and load_tokenizer(folder).fingerprint != tokenizer.fingerprint:
            raise ConfigurationError(
                f"{folder}: must be the tokenizer of this run's data, as checkpoints there know its ids alone; start a "
                "new run with another run.name."
            )
        tokenizer.save(folder)

    def _write_plan(self) -> None:
        plan, steps = self.context.plan, self.context.last_step.steps
        plan = replace(plan, horizon=plan.horizon.ending_at(steps)) if steps else plan
        self._written_steps = steps
        write_json(self.context.folder / "plan.json", {**plan.to_json(), RESOLVED: self.context.resolved})


def describe_devices(trainer: pl.Trainer) -> dict[str, Any]:
    """Return the computing devices: the device of this rank, how many there are, and how they work together."""
    device = trainer.strategy.root_device
    facts: dict[str, Any] = {
        "type": device.type,
        "num_devices": trainer.world_size,
        "num_nodes": trainer.num_nodes,
        "strategy": type(trainer.strategy).__name__,
        "precision": str(trainer.precision),
        "cpu_threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {"name": properties.name, "memory_bytes": properties.total_memory, "cuda": torch.version.cuda}
    return facts
