"""`lmtrain plan fleet.TERM=VALUE ...`: model, tokens, devices, time and money; missing terms are computed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from lmtrain.accounting.cluster import ASSUMED_MFU, Cluster, Peak
from lmtrain.accounting.fleets.fleet import FleetRun, given_terms, is_solved, propagate
from lmtrain.accounting.fleets.fleet_plan import (
    STATIC_BYTES_PER_PARAMETER,
    FleetPlan,
    found_terms,
    solve_in_whole_devices,
    without_limits,
)
from lmtrain.accounting.machine.hardware import MATMUL_DTYPES, Device, devices_called, require_known
from lmtrain.accounting.machine.number_formats import utilization_format
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.cli.commands.fleet_terms import PREFIX, as_typed, read_dtype, read_terms
from lmtrain.errors import EXIT_DONE, EXIT_NO, ConfigurationError, retold
from lmtrain.report.plans.fleet_page import print_fleet
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.choices import told_apart
from lmtrain.run.compose.flags import MULTIRUN

# Groups allowed beside fleet's terms: devices, model and precision. Anything else would have no effect.
MOST_CONTEXT: Final = 8192  # tokens, unless typed; models of longer ones are pretrained in such sequences mostly
GROUPS: Final = ("cluster", "model", "precision", "batch.context_tokens")
ADAMW_MOMENTS: Final = 2


@dataclass(frozen=True)
class FleetModel:
    """A model of the config: parameters, and PaLM's FLOPs per token in sequences of `context_tokens`."""

    name: str
    num_parameters: int
    num_active_parameters: int
    flops_per_token: int
    context_tokens: int


@dataclass(frozen=True)
class FleetConfig:
    """The groups chosen beside fleet's terms; None for the others."""

    cluster: Cluster | None = None
    model: FleetModel | None = None
    precision: PrecisionFacts | None = None

    @property
    def bytes_per_parameter(self) -> float:
        """Return weights, gradients and AdamW's moments, sharded: gathered values are cast, and no copy is kept."""
        if self.precision is None:
            return STATIC_BYTES_PER_PARAMETER
        held = self.precision.bytes_of
        return held.weights + held.gradients + ADAMW_MOMENTS * held.state


def plan_fleet(words: list[str]) -> int:
    """Print the run with every term known, or each of a sweep, and answer 1 where one does not fit or finish.

    Raises:
        ConfigurationError: An unknown, impossible or contradictory term; or too few.
    """
    trials = _trials([word for word in words if word != "--json"])
    swept = told_apart(trials)
    planned = [replace(fleet_of(trial), swept=own) for trial, own in zip(trials, swept, strict=True)]
    for fleet in planned:
        if "--json" in words:
            print(json.dumps(fleet.to_json()))
        else:
            print_fleet(fleet)
    return EXIT_DONE if all(fleet.is_possible for fleet in planned) else EXIT_NO


def _trials(words: list[str]) -> list[list[str]]:
    """Return the words of each fleet: under -m one for each value of a word.

    Raises:
        ConfigurationError: A word cannot be read.
    """
    typed = [word for word in words if word not in MULTIRUN]
    if typed == words:
        return [words]
    from lmtrain.run.compose.trials import typed_trials  # brings Hydra: of a sweep alone

    return typed_trials(typed)


def fleet_of(words: list[str]) -> FleetPlan:
    """Return the run of a command line's terms.

    Raises:
        ConfigurationError: An unknown, impossible or contradictory term; or too few.
    """
    terms = read_terms([word for word in words if word.startswith(PREFIX)])
    others = [word for word in words if not word.startswith(PREFIX)]
    _require_effect(others)
    try:
        return make_fleet_plan(terms, _composed(others) if others else FleetConfig())
    except ConfigurationError as problem:
        raise retold(problem, as_typed(str(problem), words)) from problem


def make_fleet_plan(terms: Mapping[str, Any], config: FleetConfig) -> FleetPlan:
    """Solve the equations of `terms`, with devices, price, FLOPs and formats from the chosen groups.

    Raises:
        ConfigurationError: Too few terms, or impossible ones.
    """
    utilizations = terms.get("mfu")
    if not isinstance(utilizations, tuple):
        return _plan_at(terms, config)
    plans = [_plan_at({**terms, "mfu": mfu}, config) for mfu in utilizations]
    return replace(plans[len(plans) // 2], over_mfu=tuple(plan.run for plan in plans))


def _plan_at(terms: Mapping[str, Any], config: FleetConfig) -> FleetPlan:
    cluster = _cluster(terms, config.cluster)
    peak = _peak(terms, cluster, config.precision)
    typed = _typed_run(terms, cluster, config, peak_flops=peak.flops)
    is_assumed = typed.mfu is None and "mfu" not in terms and not is_solved(propagate(without_limits(typed)))
    asked = without_limits(replace(typed, mfu=ASSUMED_MFU) if is_assumed else typed)
    solved = solve_in_whole_devices(asked, typed)
    return FleetPlan(
        run=solved,
        found=found_terms(asked, solved),
        given=given_terms(asked),
        allowed_hours=typed.hours,
        allowed_usd=typed.usd,
        allowed_device_hours=typed.device_hours,
        peak_source=_source(terms, peak, config.precision),
        mfu_is_assumed=is_assumed,
        device=cluster.known_device,
        model=config.model.name if config.model else None,
        context_tokens=config.model.context_tokens if config.model else None,
        precision=config.precision.name if config.precision else None,
        bytes_per_parameter=config.bytes_per_parameter,
    )


def _source(terms: Mapping[str, Any], peak: Peak, precision: PrecisionFacts | None) -> str:
    """Say where the peak is from, how fp8 counts, and which other devices have the typed words in their names."""
    if "peak_flops" in terms:
        return peak.source.replace("cluster.peak_flops", "fleet.peak_flops")
    is_fp8 = (precision.bytes_of.matmul if precision else terms.get("dtype")) == "fp8"
    of_fp8 = ", which MFU divides by in fp8 too: a faster step is a higher fleet.mfu" if is_fp8 else ""
    others = [device.name for device in _called(terms.get("device") or "")[1:]]
    also = f"; fleet.device={terms.get('device')} is also {', '.join(others)}" if others else ""
    return f"{peak.source}{of_fp8}{also}"


def _called(words: str) -> tuple[Device, ...]:
    """Return the devices with these words in their names, of one data sheet: h100 is three; none of several."""
    found = devices_called(words)
    return found if len({device.data_sheet for device in found}) == 1 else ()


def _peak(terms: Mapping[str, Any], cluster: Cluster, precision: PrecisionFacts | None) -> Peak:
    """Return the peak under MFU, as in a run: the chosen precision's or format's, and bf16's for fp8."""
    dtype = terms.get("dtype")
    if dtype and precision:
        raise ConfigurationError(
            f"fleet.dtype={dtype} and precision={precision.name} are two formats of products; leave one out."
        )
    matmul = utilization_format(precision.bytes_of.matmul if precision else read_dtype(dtype or "bf16"))
    found = cluster.peak(matmul)
    if found is None:
        word = f"precision={precision.name}" if precision else f"fleet.dtype={dtype}"
        has = [each for each in MATMUL_DTYPES if cluster.peak(each)]
        raise ConfigurationError(
            f"{word}: the table has no peak of {cluster.device} for {matmul}, but for {', '.join(has)}; set "
            "fleet.peak_flops to its dense peak in FLOP/s."
        )
    return found


def _typed_run(terms: Mapping[str, Any], cluster: Cluster, config: FleetConfig, *, peak_flops: float) -> FleetRun:
    model = config.model
    if model and terms.get("num_parameters"):
        raise ConfigurationError(
            f"fleet.num_parameters={terms['num_parameters']:g} and model={model.name} are two models; leave one out."
        )
    run = FleetRun(
        peak_flops=peak_flops,
        num_parameters=model.num_parameters if model else terms.get("num_parameters"),
        num_active_parameters=model.num_active_parameters if model else None,
        flops_per_token=model.flops_per_token if model else None,
        tokens=terms.get("tokens"),
        tokens_per_parameter=terms.get("tokens_per_parameter"),
        flops=terms.get("flops"),
        num_devices=terms.get("num_devices", _num_devices(terms, config.cluster)),
        hours=terms.get("hours"),
        device_hours=terms.get("device_hours"),
        mfu=terms.get("mfu", cluster.mfu),
        usd=terms.get("usd"),
        usd_per_gpu_hour=terms.get("usd_per_gpu_hour", cluster.usd_per_gpu_hour),
    )
    if run.usd is not None and run.usd_per_gpu_hour is None:
        raise ConfigurationError(f"fleet.usd={run.usd:g} needs a price: set fleet.usd_per_gpu_hour.")
    return run


def _num_devices(terms: Mapping[str, Any], cluster: Cluster | None) -> int | None:
    """Return the cluster's devices; bought device hours count them in."""
    return None if cluster is None or terms.get("device_hours") else cluster.num_devices


def _cluster(terms: Mapping[str, Any], cluster: Cluster | None) -> Cluster:
    """Return the devices: those of fleet's own terms, else the cluster's; `name` is the device's."""
    name, peak_flops = terms.get("device"), terms.get("peak_flops")
    if name is not None and cluster is not None:
        raise ConfigurationError(f"fleet.device={name} and cluster={cluster.name} are two devices; leave one out.")
    if cluster is not None:
        cluster = cluster if peak_flops is None else replace(cluster, peak_flops=peak_flops)
    elif name is not None or peak_flops is not None:
        if called := _called(name or ""):
            name = called[0].name
        elif name is not None:
            require_known(name, key="fleet", has_peak=peak_flops is not None)
        cluster = Cluster(name="fleet", device=name, peak_flops=peak_flops)
    if cluster is None or (cluster.device is None and cluster.peak_flops is None):
        raise ConfigurationError(
            'fleet.device has no value; name the product, as in fleet.device="NVIDIA H100 80GB HBM3", or choose '
            "cluster=h100_8x, or set fleet.peak_flops in FLOP/s."
        )
    return cluster


def _require_effect(words: list[str]) -> None:
    for word in words:
        key = word.lstrip("+").partition("=")[0]
        if key in GROUPS or key.startswith(("cluster.", "model.")):
            continue
        raise ConfigurationError(
            f"{word} has no effect beside fleet's terms, which plan without a config; they go with {', '.join(GROUPS)}."
        )
    keys = {word.lstrip("+").partition("=")[0].partition(".")[0] for word in words}
    if "batch" in keys and "model" not in keys:
        raise ConfigurationError("batch.context_tokens has no effect without a model: add model=NAME.")


def _composed(words: list[str]) -> FleetConfig:
    """Compose the chosen groups."""
    from lmtrain.run.compose.compose import Choices, for_each_config
    from lmtrain.run.planning.known_models import model_facts
    from lmtrain.run.planning.setting import planned_setting
    from lmtrain.run.run_config import read_config
    from lmtrain.run.schema.check import refuse_foreign
    from lmtrain.run.schema.facts import require_facts

    chosen = {word.lstrip("+").partition("=")[0].partition(".")[0] for word in words}
    arguments = parse_arguments(words)
    found: list[FleetConfig] = []

    def task(composed: dict[str, Any], choices: Choices) -> None:
        refuse_foreign(composed, allowed=arguments.allowed_targets)
        config = read_config(composed, allowed=arguments.allowed_targets)
        model = precision = None
        if "model" in chosen:
            facts = model_facts(config, planned_setting(config))
            longest = min(int(config.model.get("max_context_tokens") or MOST_CONTEXT), MOST_CONTEXT)
            context_tokens = config.batch.context_tokens if "batch" in chosen else longest
            flops = flops_per_token(facts.shape, context_tokens).palm
            shape, name = facts.shape, choices.options["model"]
            model = FleetModel(name, shape.num_parameters, shape.num_active_parameters, flops, context_tokens)
        if "precision" in chosen:
            precision = require_facts(config.precision.values, PrecisionFacts, allowed=config.allowed, has_bf16=True)
        found.append(FleetConfig(config.cluster if "cluster" in chosen else None, model, precision))

    for_each_config(task, arguments, config_name="train")
    return found[0]
