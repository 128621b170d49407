"""What `lmtrain doctor` has measured of this machine, and what kind of device it trains on."""

from pathlib import Path

from lmtrain.accounting.observed.measured import Kind, Measurements
from lmtrain.composition.run_config import RunConfig
from lmtrain.tracking.measurements import read_measurements


def measurements_of(config: RunConfig) -> Measurements:
    """Return what was measured on this machine before."""
    return read_measurements(Path(config.run.cache))


def kind_here(config: RunConfig, measured: Measurements) -> Kind:
    """Tell what this machine trains on, as far as the doctor has seen it."""
    return "gpu" if measured.find("gpu") and config.trainer.accelerator != "cpu" else "cpu"
