"""A refusal of runs whose checkpoints cannot lie on the disk: the first save would end them."""

import shutil
from pathlib import Path

from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.quantities import format_quantity
from lmtrain.accounting.training_plan.checkpoint_plan import CheckpointPlan, checkpoint_plan
from lmtrain.errors import EnvironmentProblem
from lmtrain.run.planning.setting import PlannedSetting, planned_setting
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.callbacks import callback_facts


def planned_checkpoints(config: RunConfig, setting: PlannedSetting, parameters: TrainedParameters) -> CheckpointPlan:
    """Return the bytes of a checkpoint of the config, of all of them on disk at once, and their cadence."""
    spread, num_devices = config.spread, config.num_ranks
    intervals = [facts.saves_every_seconds for facts in callback_facts(config) if facts.saves_every_seconds]
    return checkpoint_plan(
        parameters,
        precision=setting.bytes_of,
        optimizer=setting.state,
        num_kept=sum(facts.num_kept for facts in callback_facts(config)) or 1,
        num_devices=num_devices,
        num_parts=spread.num_savers(num_devices),
        num_workers=1 if spread.equals_one_process else num_devices,
        shared_bytes=spread.kept_bytes,
        num_nodes=config.trainer.num_nodes,
        device_hours_per_failure=config.cluster.device_hours_per_failure,
        restart_seconds=config.cluster.restart_seconds,
        set_seconds=min(intervals, default=None),
    )


def require_disk(config: RunConfig, parameters: TrainedParameters, *, folder: Path, num_steps: int) -> None:
    """Compare the checkpoints of a run of `num_steps` with the free space under its folder.

    Its earlier checkpoints make room for later ones.

    Raises:
        EnvironmentProblem: They do not fit.
    """
    if not any(facts.num_kept for facts in callback_facts(config)):
        return
    from lmtrain.doctor.disk import nearest_folder  # for a run, not for a plan of one

    planned = planned_checkpoints(config, planned_setting(config), parameters)
    needed = min(planned.kept_bytes, num_steps * planned.checkpoint_bytes)
    earlier = sum(file.stat().st_size for file in (folder / "checkpoints").rglob("*") if file.is_file())
    free = shutil.disk_usage(nearest_folder(folder)).free
    if free + earlier >= needed:
        return
    raise EnvironmentProblem(
        f"{folder.parent} has {format_quantity(free, 'bytes')} free and the run's checkpoints need "
        f"{format_quantity(needed, 'bytes')} ({format_quantity(planned.checkpoint_bytes, 'bytes')} each, one more "
        "while it is written); free some space, set run.root to a larger disk, or lower callbacks.checkpoint.keep_last."
    )
