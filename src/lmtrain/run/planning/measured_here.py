"""`lmtrain doctor`'s measurements of this machine, and its kind of training device."""

from pathlib import Path

from lmtrain.accounting.observed.measured import Kind, Measurements
from lmtrain.run.run_config import RunConfig
from lmtrain.tracking.machine import read_measurements


def measurements_of(config: RunConfig) -> Measurements:
    """Return this machine's earlier measurements."""
    return read_measurements(Path(config.run.cache))


def kind_here(config: RunConfig, measured: Measurements) -> Kind:
    """Return this machine's kind of training device, as far as the doctor has seen it."""
    return "gpu" if measured.find("gpu") and config.trainer.accelerator != "cpu" else "cpu"
