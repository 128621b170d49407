"""`lmtrain export ... --register NAME`: the exported model becomes a version of a name in MLflow's registry."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.errors import ConfigurationError
from lmtrain.run.stored_runs.find_run import find_source
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.mlflow.sync import ModelRegistry, Registered


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A wanted version of a checkpoint."""

    registry: ModelRegistry
    checkpoint: Path
    step: int
    facts: Mapping[str, object]

    def register(self, exported: Path, *, form: str) -> Registered:
        """Register the exported files."""
        return self.registry.register(exported, step=self.step, form=form, facts=self.facts)


def add_registration(parser: argparse.ArgumentParser) -> None:
    """Add the words of a registration."""
    parser.add_argument("--register", metavar="NAME", help="makes a version of this name in MLflow's registry")
    parser.add_argument("--tracking-uri", help="of that registry (where the run was tracked)")


def registration(arguments: argparse.Namespace) -> Registration | None:
    """Return the registration asked for, None without one; its store has answered.

    Raises:
        ConfigurationError: SOURCE has no run, or --tracking-uri has no effect.
    """
    if arguments.register is None:
        if arguments.tracking_uri is not None:
            raise ConfigurationError(
                f"--tracking-uri {arguments.tracking_uri} has no effect without --register NAME; add it, or leave "
                "--tracking-uri out."
            )
        return None
    source = find_source(arguments.source, key="SOURCE")
    if isinstance(source, Path):
        raise ConfigurationError(
            f"--register {arguments.register}: {source} is an imported folder, and a version in the registry is of a "
            "run; train from it first, or leave --register out."
        )
    checkpoint = source.checkpoint
    facts = {
        "tokens": checkpoint.tokens,
        "bits_per_byte": checkpoint.metrics.get(BITS_PER_BYTE),
        "data_fingerprint": read_json(source.run / "dataset.json").get("fingerprint"),
    }
    registry = ModelRegistry(source.run, arguments.register, tracking_uri=arguments.tracking_uri)
    return Registration(registry=registry, checkpoint=checkpoint.path, step=checkpoint.step, facts=facts)
