"""The simulated fleets of a command line: the planned step of its config, or of each of a sweep."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.batches import MICRO_BATCH
from lmtrain.accounting.training_plan.setting import moments_of
from lmtrain.accounting.training_plan.simulated_fleet import SimulatedFleet
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import Choices, parse_arguments
from lmtrain.run.gate import check
from lmtrain.run.planning.choices import with_recompute
from lmtrain.run.planning.plan import plan_of
from lmtrain.run.planning.strategy_choice import with_strategy
from lmtrain.run.planning.tried_words import with_words
from lmtrain.run.run_config import RunConfig, read_config

CONTEXT_TOKENS: Final = 8192  # of a sequence where no batch is typed, or the model's own if they are fewer


@dataclass(frozen=True)
class ChosenFleet:
    """A config's simulated fleet; `chosen` is the reason of a strategy chosen for it."""

    choices: Choices
    fleet: SimulatedFleet
    chosen: str | None


def simulated_fleets(words: list[str]) -> list[ChosenFleet]:
    """Simulate the config of a command line, or each of a sweep."""
    arguments = parse_arguments(words)
    from lmtrain.run.compose.compose import configs_of

    found: list[ChosenFleet] = []
    for composed, choices in configs_of(arguments, config_name="train"):
        values = _with_batch(read_config(composed), choices.typed).values  # the default may not divide over a fleet
        config = check(values, allowed=arguments.allowed_targets, typed=choices.typed, place="paper")
        config, chosen = with_strategy(config)
        found.append(ChosenFleet(choices, simulated_fleet(config), chosen))
    return found


def simulated_fleet(config: RunConfig) -> SimulatedFleet:
    """Plan the step of a config and draw it out; the rates of its device and links must be known."""
    cluster = config.cluster
    if cluster.known_device is None:
        raise ConfigurationError(
            f"cluster.device must be in the hardware table, got {cluster.device}; set cluster=h100_8x."
        )
    if cluster.num_nodes > 1 and cluster.node_bytes_per_second is None:
        raise ConfigurationError(
            f"cluster.network_bytes_per_second must be set for {cluster.num_nodes} nodes, as 400GB."
        )
    config, _ = with_recompute(config)
    planned, setting = plan_of(config)
    if planned.speed is None or planned.step is None or planned.memory is None or planned.communication is None:
        raise ConfigurationError(
            f"the hardware table has no peak of {cluster.device} for precision={config.precision.word}; set "
            "cluster.peak_flops to its dense peak in FLOP/s."
        )
    return SimulatedFleet(
        strategy=config.strategy.word,
        batch=planned.batch,
        speed=planned.speed,
        time=planned.step,
        memory=planned.memory,
        moments=moments_of(setting, planned.batch),
        groups=planned.communication.groups,
        device_bytes=setting.device_bytes,
    )


def _with_batch(config: RunConfig, typed: Sequence[str]) -> RunConfig:
    """Return the config with a batch of one long sequence per device, unless another is typed."""
    keys = {word.lstrip("+").partition("=")[0] for word in typed}
    context, words = config.batch.context_tokens, list[str]()
    if config.batch.is_auto:
        raise ConfigurationError(f"{MICRO_BATCH} must be a number in a simulation, got auto.")
    sequences = config.batch.asked_sequences
    if "batch.context_tokens" not in keys:
        context = min(CONTEXT_TOKENS, int(config.model.get("max_context_tokens") or CONTEXT_TOKENS))
        words.append(f"batch.context_tokens={context}")
    if "batch.tokens_per_step" not in keys:
        words.append(f"batch.tokens_per_step={(sequences or 1) * config.num_ranks * context}")
    return with_words(config, words)
