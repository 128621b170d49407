"""`lmtrain plan fleet.TERM=VALUE ...`: model, tokens, devices, time and money; missing terms are computed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lmtrain.accounting.cluster import ASSUMED_MFU, Cluster, Peak
from lmtrain.accounting.fleet import (
    STATIC_BYTES_PER_PARAMETER,
    FleetPlan,
    FleetRun,
    is_solved,
    propagate,
    solve_in_whole_devices,
)
from lmtrain.accounting.machine.hardware import devices_called, require_known
from lmtrain.accounting.machine.number_formats import utilization_format
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.accounting.quantities import parse_quantity, parse_whole
from lmtrain.cli.fleet_terms import FLEET, FLEET_TERMS
from lmtrain.errors import EXIT_DONE, EXIT_NO, ConfigurationError, suggest
from lmtrain.json_output import print_json
from lmtrain.run.compose.arguments import parse_arguments

# Groups that may stand next to the terms: devices, model and precision. Anything else would have no effect.
GROUPS: Final = ("cluster", "model", "precision", "batch.context_tokens")
MOST_CONTEXT: Final = 8192  # tokens, unless typed: models of longer contexts are mostly pretrained in such sequences
ADAMW_MOMENTS: Final = 2
TYPED: Final = ("num_parameters", "tokens", "tokens_per_parameter", "flops", "hours", "device_hours", "usd")


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """The groups chosen next to the terms; None for the others.

    `of_model` are the terms of the model: parameters, and PaLM's FLOPs per token in sequences of `context_tokens`.
    """

    cluster: Cluster | None = None
    precision: PrecisionFacts | None = None
    model: str | None = None
    context_tokens: int | None = None
    of_model: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def bytes_per_parameter(self) -> float:
        """Return weights, gradients and AdamW's moments, sharded: gathered values are cast, and no copy is kept."""
        if self.precision is None:
            return STATIC_BYTES_PER_PARAMETER
        held = self.precision.bytes_of
        return held.weights + held.gradients + ADAMW_MOMENTS * held.state


def plan_fleet(words: list[str], *, as_json: bool = False) -> int:
    """Print the run with every term known, and answer 1 where it does not fit."""
    fleet = fleet_of(words)
    if as_json:
        print_json(fleet.to_json())
    else:
        from lmtrain.report.plans.fleet_page import page
        from lmtrain.report.show import show

        show(page(fleet))
    return EXIT_DONE if fleet.is_possible else EXIT_NO


def fleet_of(words: list[str]) -> FleetPlan:
    """Return the run of a command line's terms."""
    terms = read_terms([word for word in words if word.startswith(FLEET)])
    others = [word for word in words if not word.startswith(FLEET)]
    keys = [word.lstrip("+").partition("=")[0] for word in others]
    for word, key in zip(others, keys, strict=True):
        if key not in GROUPS and not key.startswith(("cluster.", "model.")):
            raise ConfigurationError(f"{word} has no effect next to fleet's terms, which go with {', '.join(GROUPS)}.")
    if "batch.context_tokens" in keys and not any(key.startswith("model") for key in keys):
        raise ConfigurationError("batch.context_tokens has no effect without a model: add model=NAME.")
    return make_fleet_plan(terms, _composed(others) if others else FleetConfig())


def read_terms(words: Iterable[str]) -> dict[str, Any]:
    """Return fleet's terms by name as numbers, days as hours; null marks the unknown term."""
    terms: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        name = key.removeprefix(FLEET)
        if name not in FLEET_TERMS:
            raise ConfigurationError(
                f"{word}: unknown term; must be one of {', '.join(FLEET_TERMS)}.{suggest(name, FLEET_TERMS)}"
            )
        target = "hours" if name == "days" else name
        if target in terms:
            raise ConfigurationError(f"{word}: the term is given twice; leave one out.")
        number = None if value == "null" else value if name == "device" else _number(key, name, value)
        terms[target] = number * 24 if name == "days" and isinstance(number, int | float) else number
    return terms


def _number(key: str, name: str, value: str) -> float:
    number = parse_quantity(value, key)
    if number <= 0:
        raise ConfigurationError(f"{key} must be above 0, got {value}; leave it out to have it computed.")
    return parse_whole(value, key) if name == "num_devices" else number


def make_fleet_plan(terms: Mapping[str, Any], config: FleetConfig) -> FleetPlan:
    """Solve the equations of `terms`, with devices, price, FLOPs and formats from the chosen groups."""
    cluster = _cluster(terms, config.cluster)
    peak = _peak(cluster, config.precision)
    typed = _typed_run(terms, cluster, config, peak_flops=peak.flops)
    is_assumed = typed.mfu is None and "mfu" not in terms and not is_solved(propagate(typed))
    asked = replace(typed, mfu=ASSUMED_MFU) if is_assumed else typed
    return FleetPlan(
        run=solve_in_whole_devices(asked),
        asked=asked,
        peak_source=peak.source.replace("cluster.peak_flops", "fleet.peak_flops"),
        mfu_is_assumed=is_assumed,
        device=cluster.known_device,
        model=config.model,
        context_tokens=config.context_tokens,
        precision=config.precision.name if config.precision else None,
        bytes_per_parameter=config.bytes_per_parameter,
    )


def _cluster(terms: Mapping[str, Any], cluster: Cluster | None) -> Cluster:
    """Return the devices: those of fleet's own terms, else the cluster's."""
    name, peak_flops = terms.get("device"), terms.get("peak_flops")
    if name is not None and cluster is not None:
        raise ConfigurationError(f"fleet.device={name} and cluster={cluster.name} are mutually exclusive; set one.")
    if cluster is not None:
        cluster = cluster if peak_flops is None else replace(cluster, peak_flops=peak_flops)
    elif name is not None or peak_flops is not None:
        if called := devices_called(name or ""):
            name = called[0].name
        elif name is not None:
            require_known(name, key="fleet", has_peak=peak_flops is not None)
        cluster = Cluster(name="fleet", device=name, peak_flops=peak_flops)
    if cluster is None or (cluster.device is None and cluster.peak_flops is None):
        raise ConfigurationError("fleet.device is missing; set fleet.device=h100, cluster=h100_8x or fleet.peak_flops.")
    return cluster


def _peak(cluster: Cluster, precision: PrecisionFacts | None) -> Peak:
    """Return the peak that MFU divides by: of the chosen precision, and bf16's for fp8."""
    matmul = utilization_format(precision.bytes_of.matmul if precision else "bf16")
    if found := cluster.peak(matmul):
        return found
    raise ConfigurationError(f"fleet.peak_flops is missing: {cluster.device} has no known peak for {matmul}.")


def _typed_run(terms: Mapping[str, Any], cluster: Cluster, config: FleetConfig, *, peak_flops: float) -> FleetRun:
    if config.model and terms.get("num_parameters"):
        raise ConfigurationError(f"fleet.num_parameters and model={config.model} are mutually exclusive; set one.")
    of_cluster = None if config.cluster is None or terms.get("device_hours") else config.cluster.num_devices
    return FleetRun(
        peak_flops=peak_flops,
        num_devices=terms.get("num_devices", of_cluster),
        mfu=terms.get("mfu", cluster.mfu),
        usd_per_gpu_hour=terms.get("usd_per_gpu_hour", cluster.usd_per_gpu_hour),
        **{**{name: terms.get(name) for name in TYPED}, **config.of_model},
    )


def _composed(words: list[str]) -> FleetConfig:
    """Compose the chosen groups."""
    from lmtrain.run.gate import checked_configs
    from lmtrain.run.planning.known_models import model_facts
    from lmtrain.run.planning.setting import planned_setting
    from lmtrain.run.schema.facts import require_facts

    chosen = {word.lstrip("+").partition("=")[0].partition(".")[0] for word in words}
    ((config, choices),) = checked_configs(parse_arguments(words), place="paper")
    found = FleetConfig(cluster=config.cluster if "cluster" in chosen else None)
    if "precision" in chosen:
        precision = require_facts(config.precision.values, PrecisionFacts, allowed=config.allowed, has_bf16=True)
        found = replace(found, precision=precision)
    if "model" not in chosen:
        return found
    shape = model_facts(config, planned_setting(config)).shape
    longest = min(int(config.model.get("max_context_tokens") or MOST_CONTEXT), MOST_CONTEXT)
    context = config.batch.context_tokens if "batch" in chosen else longest
    terms = {name: getattr(shape, name) for name in ("num_parameters", "num_active_parameters")}
    terms["flops_per_token"] = flops_per_token(shape, context).palm
    return replace(found, model=choices.options["model"], context_tokens=context, of_model=terms)
