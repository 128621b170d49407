"""`lmtrain plan fleet.TERM=VALUE ...`: model, tokens, devices, time and money; missing terms are computed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.fleets.fleet import ASSUMED_MFU, FleetRun, unknown_terms
from lmtrain.accounting.fleets.fleet_plan import FleetPlan, solve_in_whole_devices, without_limits
from lmtrain.accounting.machine.hardware import MatmulDtype, require_known
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.quantities import parse_quantity, parse_whole
from lmtrain.composition.command_line.arguments import parse_arguments
from lmtrain.errors import EXIT_DONE, EXIT_NO, ConfigurationError, did_you_mean, suggest
from lmtrain.report.fleet_page import print_fleet

PREFIX: Final = "fleet."
AMOUNTS: Final = ("num_parameters", "tokens", "num_devices", "hours", "days", "mfu", "usd")
RATES: Final = ("usd_per_gpu_hour", "peak_flops")
WORDS: Final = ("device", "dtype")
TERMS: Final = (*AMOUNTS, *RATES, *WORDS)
DTYPES: Final[tuple[MatmulDtype, ...]] = ("bf16", "fp16", "tf32", "fp32", "fp8")
# Groups allowed beside fleet's terms: devices and model. Anything else would have no effect.
GROUPS: Final = ("cluster", "model", "batch.context_tokens")


@dataclass(frozen=True)
class FleetModel:
    """A model of the config: parameters, and PaLM's FLOPs per token in sequences of `context_tokens`."""

    name: str
    num_parameters: int
    flops_per_token: int
    context_tokens: int


def is_fleet(words: list[str]) -> bool:
    """Tell whether a command line asks for the equation rather than for the plan of a config."""
    return any(word.startswith(PREFIX) for word in words)


def plan_fleet(words: list[str], *, program: str) -> int:
    """Print the run with every term known, and answer 1 where it does not fit or finish.

    Raises:
        ConfigurationError: A term that does not exist, cannot be, or contradicts others; or too few.
    """
    planned = fleet_of([word for word in words if word != "--json"], program=program)
    if "--json" in words:
        print(json.dumps(planned.to_json()))
    else:
        print_fleet(planned)
    return EXIT_DONE if planned.is_possible else EXIT_NO


def fleet_of(words: list[str], *, program: str) -> FleetPlan:
    """Return the run of a command line's terms.

    Raises:
        ConfigurationError: A term that does not exist, cannot be, or contradicts others; or too few.
    """
    terms = read_terms([word for word in words if word.startswith(PREFIX)])
    others = [word for word in words if not word.startswith(PREFIX)]
    _require_effect(others)
    cluster, model = _composed(others, program=program) if others else (None, None)
    return make_fleet_plan(terms, cluster=cluster, model=model)


def read_terms(words: list[str]) -> dict[str, Any]:
    """Return fleet's terms by name as numbers, days as hours; null marks a term as the unknown one.

    Raises:
        ConfigurationError: No such term, one given twice, or a value of another unit.
    """
    terms: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        name = key.removeprefix(PREFIX)
        if name not in TERMS:
            raise ConfigurationError(f"{word}: there is no term {key}; fleet has {', '.join(TERMS)}.{_nearest(name)}")
        if name in terms or (name in ("days", "hours") and terms.keys() & {"days", "hours"}):
            what = "the time" if name in ("days", "hours") else key
            raise ConfigurationError(f"{word}: {what} is given twice; leave one out.")
        terms[name] = None if value == "null" else value if name in WORDS else _number(key, value)
    if "days" in terms:
        days = terms.pop("days")
        terms["hours"] = None if days is None else days * 24
    return terms


def make_fleet_plan(terms: Mapping[str, Any], *, cluster: Cluster | None, model: FleetModel | None) -> FleetPlan:
    """Solve the equation of `terms`, with devices and price from the cluster and FLOPs from the model, if given.

    Raises:
        ConfigurationError: Too few terms, or impossible ones.
    """
    num_devices = cluster.num_devices if cluster else None
    cluster = _cluster(terms, cluster)
    peak = cluster.peak(_dtype(terms.get("dtype") or "bf16"))
    if peak is None:
        raise ConfigurationError(
            f"fleet.dtype={terms.get('dtype')}: the table has no peak of {cluster.device} for it; set "
            "fleet.peak_flops to its dense peak in FLOP/s."
        )
    typed = _typed_run(terms, cluster, model, peak_flops=peak.flops, num_devices=num_devices)
    is_assumed = typed.mfu is None and "mfu" not in terms and len(unknown_terms(typed)) > 1
    asked = without_limits(replace(typed, mfu=ASSUMED_MFU) if is_assumed else typed)
    solved = solve_in_whole_devices(asked)
    return FleetPlan(
        run=solved,
        found=tuple(name for name, value in solved.to_json().items() if value and getattr(asked, name) is None),
        allowed_hours=typed.hours,
        allowed_usd=typed.usd,
        peak_source=peak.source.replace("cluster.peak_flops", "fleet.peak_flops")
        if "peak_flops" in terms
        else peak.source,
        mfu_is_assumed=is_assumed,
        device=cluster.known_device,
        model=model.name if model else None,
        context_tokens=model.context_tokens if model else None,
    )


def _typed_run(
    terms: Mapping[str, Any],
    cluster: Cluster,
    model: FleetModel | None,
    *,
    peak_flops: float,
    num_devices: int | None,
) -> FleetRun:
    if model and terms.get("num_parameters"):
        raise ConfigurationError(
            f"fleet.num_parameters={terms['num_parameters']:g} and model={model.name} are two models; leave one out."
        )
    run = FleetRun(
        peak_flops=peak_flops,
        num_parameters=model.num_parameters if model else terms.get("num_parameters"),
        flops_per_token=model.flops_per_token if model else None,
        tokens=terms.get("tokens"),
        num_devices=terms.get("num_devices", num_devices),
        hours=terms.get("hours"),
        mfu=terms.get("mfu", cluster.mfu),
        usd=terms.get("usd"),
        usd_per_gpu_hour=terms.get("usd_per_gpu_hour", cluster.usd_per_gpu_hour),
    )
    if run.usd is not None and run.usd_per_gpu_hour is None:
        raise ConfigurationError(f"fleet.usd={run.usd:g} needs a price: set fleet.usd_per_gpu_hour.")
    return run


def _cluster(terms: Mapping[str, Any], cluster: Cluster | None) -> Cluster:
    """Return the devices: those of fleet's own terms, else the cluster's; `name` is the device's."""
    name, peak_flops = terms.get("device"), terms.get("peak_flops")
    if name is not None and cluster is not None:
        raise ConfigurationError(f"fleet.device={name} and cluster={cluster.name} are two devices; leave one out.")
    if cluster is not None:
        cluster = cluster if peak_flops is None else replace(cluster, peak_flops=peak_flops)
    elif name is not None or peak_flops is not None:
        if name is not None:
            require_known(name, key="fleet", has_peak=peak_flops is not None)
        cluster = Cluster(name="fleet", device=name, peak_flops=peak_flops)
    if cluster is None or (cluster.device is None and cluster.peak_flops is None):
        raise ConfigurationError(
            'fleet.device has no value; name the product, as in fleet.device="NVIDIA H100 80GB HBM3", or choose '
            "cluster=h100_8x, or set fleet.peak_flops in FLOP/s."
        )
    return cluster


def _number(key: str, value: str) -> float:
    number = parse_quantity(value, key)
    if number <= 0:
        raise ConfigurationError(f"{key}={value} is not above 0; leave it out to have it computed.")
    return parse_whole(value, key) if key.endswith(".num_devices") else number


def _dtype(word: str) -> MatmulDtype:
    if word not in DTYPES:
        raise ConfigurationError(f"fleet.dtype={word} is not one of {', '.join(DTYPES)}.{suggest(word, DTYPES)}")
    return word


def _nearest(name: str) -> str:
    synonyms = {
        "gpus": "num_devices", "num_gpus": "num_devices", "devices": "num_devices", "model": "num_parameters",
        "parameters": "num_parameters", "params": "num_parameters", "time": "hours", "dollars": "usd", "gpu": "device",
        "price": "usd_per_gpu_hour",
    }  # fmt: skip
    return did_you_mean([synonyms[name]]) if name in synonyms else suggest(name, TERMS)


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


def _composed(words: list[str], *, program: str) -> tuple[Cluster | None, FleetModel | None]:
    """Compose the chosen cluster and model; None for one not chosen."""
    from lmtrain.composition.command_line.compose import Choices, for_each_config
    from lmtrain.composition.planning.known_models import model_facts
    from lmtrain.composition.planning.setting import planned_setting
    from lmtrain.composition.run_config import read_config

    chosen = {word.lstrip("+").partition("=")[0].partition(".")[0] for word in words}
    found: list[tuple[Cluster | None, FleetModel | None]] = []

    def task(composed: dict[str, Any], choices: Choices) -> None:
        config = read_config(composed)
        cluster = config.cluster if "cluster" in chosen else None
        model = None
        if "model" in chosen:
            facts = model_facts(config, planned_setting(config))
            context_tokens = config.batch.context_tokens
            flops = flops_per_token(facts.shape, context_tokens).palm
            model = FleetModel(choices.options["model"], facts.shape.num_parameters, flops, context_tokens)
        found.append((cluster, model))

    for_each_config(task, parse_arguments(words), config_name="train", program=program)
    return found[0]
