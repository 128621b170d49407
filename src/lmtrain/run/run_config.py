"""The one reading of a composed config: from here on a run's settings are typed and frozen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_type_hints

from lmtrain.accounting.batches import Batch, BatchPlan, plan_batches
from lmtrain.accounting.budgets import Budget
from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.options.parts import CallbackFacts, CompileFacts
from lmtrain.accounting.options.ranges import require_number
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.quantities import parse_whole
from lmtrain.accounting.scaling import Scaling
from lmtrain.errors import ConfigurationError, suggest, wrong
from lmtrain.run.compose.group_options import one_of, option_of, words_of
from lmtrain.run.scaling import scaling_of
from lmtrain.run.schema.check import REPEATS, TARGET, check_node, check_value
from lmtrain.run.schema.facts import Facts, facts_of
from lmtrain.run.schema.node import Node
from lmtrain.run.settings import HealthSettings, RoutingSettings, RunSettings, TrainerSettings
from lmtrain.training.lean_import import import_lightning

F = TypeVar("F", bound=Facts)

# Groups inside `data` (it repeats them).
WITHIN_DATA: Final = ("source", "cleaning", "deduplicate", "engine")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A run as asked for; `allowed` are the packages that may be loaded besides ours.

    Options with a target are nodes; `callbacks` are those switched on, in their order. `values`
    is the same as plain values, to keep, to hash and to compare.
    """

    seed: int
    resume: str
    init_from: str | None
    teacher: str | None
    gradient_clip_norm: float | None
    optimizer_cpu_offload: bool
    deterministic: bool
    run: RunSettings
    health: HealthSettings
    experts: RoutingSettings
    batch: Batch
    budget: Budget
    cluster: Cluster
    trainer: TrainerSettings
    scaling: Scaling | None
    callbacks: Mapping[str, Node]
    data: Node
    tokenizer: Node
    packing: Node
    model: Node
    attention: Node
    loss: Node
    optimizer: Node
    schedule: Node
    momentum_schedule: Node
    weight_decay_schedule: Node
    spikes: Node
    weight_average: Node
    adapter: Node
    objective: Node
    module: Node
    precision: Node
    strategy: Node
    recompute: Node
    compile: Node
    logger: Node
    profiler: Node
    make_trainer: Node
    allowed: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(repr=False)

    @property
    def num_ranks(self) -> int:
        """Count the processes of all nodes."""
        return self.trainer.devices * self.trainer.num_nodes

    def facts(self, kind: type[F], **place: Any) -> F | None:
        """Return what the chosen option of a kind's group states of itself; `place` is not among its settings."""
        return facts_of(getattr(self, kind.group).values, kind, allowed=self.allowed, **place)

    def require_option(
        self, kind: type[F], fits: Callable[[F], bool], rule: str, *, unstated: F | None = None, **place: Any
    ) -> None:
        """Refuse the chosen option of a kind's group unless its facts fit, and name the options that do.

        `unstated` are the facts of an option that states none, None: it is not refused.
        """
        found = self.facts(kind, **place) or unstated
        if found is not None and not fits(found):
            got = option_of(kind.group, getattr(self, kind.group).values)
            words = words_of(kind, fits, **place)
            others = [word for word in words if word != f"{kind.group}={got}"]
            raise wrong(kind.group, f"one {rule}", got, one_of(others or words))

    @cached_property
    def spread(self) -> ModelSpread:
        """Return the strategy's facts; the plain case where it states none."""
        return self.facts(ModelSpread) or ModelSpread()

    @cached_property
    def callback_facts(self) -> dict[str, CallbackFacts]:
        """Return what the callbacks' modules state of them, by their dotted keys, where they do."""
        nodes = self.callbacks.values()
        found = {node.key: facts_of(node.values, CallbackFacts, allowed=self.allowed, key=node.key) for node in nodes}
        return {key: facts for key, facts in found.items() if facts is not None}

    @property
    def compilation(self) -> CompileFacts:
        """Return what is compiled."""
        return self.facts(CompileFacts) or CompileFacts()

    def divided(self, batch: Batch | None = None) -> BatchPlan:
        """Divide a step, or that of another batch, over the run's ranks; under `auto` a rank takes its whole share."""
        spread = self.spread
        spread.require_ranks(self.num_ranks)
        asked = batch or self.batch
        divided = plan_batches(
            asked,
            num_ranks=self.num_ranks,
            tensor_ranks=spread.tensor_ranks,
            context_ranks=spread.context_ranks,
            num_stages=spread.pipeline.num_stages,
        )
        if not asked.is_auto:
            spread.pipeline.require_micro_steps(divided)
        return divided

    def changed(self, **groups: Any) -> "RunConfig":
        """Return the reading of the same config with other groups, each a node or plain values."""
        plain = {name: group.values if isinstance(group, Node) else group for name, group in groups.items()}
        new = {name: group for name, group in plain.items() if group is not self.values.get(name, groups)}
        values = {**self.values, **new}
        if new.keys() <= {*NODES}:  # a plan may try a hundred options
            nodes: dict[str, Any] = {name: Node(name, group) for name, group in new.items()}
            return replace(self, values=values, **nodes)
        return read_config(values, allowed=self.allowed, like=self)

    def checked(self) -> "RunConfig":
        """Return the config with every node checked against the code of its target; this imports torch."""
        import_lightning()
        values = {name: getattr(self, name) if name in SCALARS else self.values[name] for name in KEYS}
        # `data` repeats other groups, whose own keys are the ones to name: it is checked last.
        for name in (*sorted({*KEYS} - {*SCALARS, REPEATS}), REPEATS):
            values[name] = check_node(values[name], key=name, allowed=self.allowed)
        return read_config(values, allowed=self.allowed)

    def with_checked(self, *names: str) -> "RunConfig":
        """Return the config with some nodes checked against their constructors."""
        return replace(self, **{name: getattr(self, name).checked(self.allowed) for name in names})


COUNTS: Final = ("devices", "num_nodes")  # of the trainer
OUR_MODULE: Final = {TARGET: "lmtrain.run.builders.own_module.causal_lm"}
HINTS: Final = get_type_hints(RunConfig)
LIGHT: Final = ("run", "batch", "budget", "cluster", "health", "experts")  # built when they are read
SCALARS: Final = {
    **{name: kind for name, kind in HINTS.items() if kind in (int, str, bool, str | None, float | None)},
    "resume": Literal["auto", "must", "never"] | Path,  # kept as text
}
NODES: Final = tuple(name for name, kind in HINTS.items() if kind is Node and name != "make_trainer")
KEYS: Final = (
    *SCALARS,
    *(entry.name for entry in fields(RunConfig) if entry.name not in {*SCALARS, "make_trainer", "allowed", "values"}),
    *WITHIN_DATA,
)


def read_config(values: Mapping[str, Any], *, allowed: Sequence[str] = (), like: RunConfig | None = None) -> RunConfig:
    """Read a composed config; the nodes' code is neither imported nor checked here.

    Settings that are those of `like` are not checked again: a plan may try a hundred configs.
    """
    for name in values:
        if name not in KEYS:
            raise ConfigurationError(f"{name}={values[name]} is not a key of a run.{suggest(name, KEYS)}")
    if "callbacks" not in values:
        raise ConfigurationError("callbacks: must have an entry, got []; callbacks.NAME=null switches one off.")
    values = {"module": OUR_MODULE, "teacher": None, **values}  # a config saved by an earlier version has neither
    scalars = {name: check_value(values[name], kind, key=name) for name, kind in SCALARS.items()}
    _require_scalars(scalars)
    light: dict[str, Any] = {"health": HealthSettings(), "experts": RoutingSettings()}
    for name in LIGHT:
        if name in light and name not in values:
            continue  # a config saved by an earlier version
        is_same = like is not None and values[name] is like.values.get(name)
        light[name] = getattr(like, name) if is_same else Node(name, values[name]).checked(allowed).build()
    nodes: dict[str, Any] = {name: Node(name, values[name]) for name in NODES}
    return RunConfig(
        **scalars,
        **light,
        **nodes,
        make_trainer=Node("trainer", values["trainer"]),
        trainer=_trainer_settings(values["trainer"]),
        scaling=scaling_of(dict(values)),
        callbacks={name: _callback(name, node) for name, node in values["callbacks"].items() if node is not None},
        allowed=tuple(allowed),
        values=values,
    )


def _callback(name: str, values: Any) -> Node:
    key = f"callbacks.{name}"
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"{key}: must be a mapping of its settings, or null to switch it off, got {values}.")
    if TARGET not in values:
        setting = f"{key}.{next(iter(values), 'KEY')}"
        raise ConfigurationError(f"{setting}: must not be given with {key}=null, which switches it off.")
    return Node(key, values)


def _require_scalars(scalars: Mapping[str, Any]) -> None:
    clip, seed = scalars["gradient_clip_norm"], scalars["seed"]
    require_number("gradient_clip_norm", clip, above=0, usual="1.0")
    if not 0 <= seed < 2**63:
        nearest = abs(seed) % 2**63
        raise ConfigurationError(f"seed: must be at least 0 and below 2**63, got {seed}. Did you mean {nearest}?")


def _trainer_settings(node: Mapping[str, Any]) -> TrainerSettings:
    if missing := [name for name in COUNTS if name not in node]:
        raise ConfigurationError(f"trainer.{missing[0]}: must be given; add trainer.{missing[0]}=1.")
    counts = {name: parse_whole(node[name], f"trainer.{name}") for name in COUNTS}
    kinds = get_type_hints(TrainerSettings)
    given = {name: node[name] for name in kinds if name in node and name not in COUNTS}
    others = {name: check_value(value, kinds[name], key=f"trainer.{name}") for name, value in given.items()}
    return TrainerSettings(**counts, **others)
