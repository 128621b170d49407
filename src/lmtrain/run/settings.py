"""Settings of several parts of a run: where it lives, how often it speaks, on how many processes it runs."""

from dataclasses import dataclass

from lmtrain.accounting.options.ranges import require_count, require_number
from lmtrain.accounting.options.typed_alone import TypedAlone
from lmtrain.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Folders are relative to where the command is typed; `name` None names the run after its overrides.

    `allow_changes` names facts of a checkpoint that may differ at a resume, as a refusal names them. Trackers show
    `tags` and `notes`.
    """

    name: str | None = None
    root: str = "runs"
    cache: TypedAlone[str] = ".cache"
    log_every_steps: int = 10
    allow_changes: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    notes: str | None = None

    def __post_init__(self) -> None:
        for key, folder in (("root", self.root), ("cache", self.cache)):
            if "://" in folder:
                raise ConfigurationError(f"run.{key}: must be a folder of this machine, got {folder}; mount it there.")
        require_count("run.log_every_steps", self.log_every_steps)


@dataclass(frozen=True, kw_only=True)
class HealthSettings:
    """How often, in optimizer steps, wrong results of a device are looked for; None: never."""

    recompute_every_steps: int | None = None
    compare_replicas_every_steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class RoutingSettings:
    """What plans assume of routers: the tokens of the fullest rank of an expert group over those of the mean one."""

    imbalance: float = 1.0

    def __post_init__(self) -> None:
        require_number("experts.imbalance", self.imbalance, at_least=1, at_most=1e4, usual="1.3")


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """The Trainer's processes and their devices."""

    devices: int
    num_nodes: int
    accelerator: str = "auto"
    cpu_threads: int | None = None
    detect_anomaly: bool = False
    lighthouse: str | None = None
