"""The simulations of a command line: its config on its own ranks, on others, and under other strategies.

A step grows with the fleet: each rank keeps its number of sequences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lmtrain.accounting.batches import MICRO_BATCH
from lmtrain.accounting.options.parts import AverageFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.training_plan.simulated_step import SimulatedFleet
from lmtrain.errors import ConfigurationError, suggest
from lmtrain.run.compose.arguments import Choices, parse_arguments
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.gate import check
from lmtrain.run.planning.auto_choices import with_strategy
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.planning.tried_words import with_words, words_of_devices
from lmtrain.run.run_config import RunConfig, read_config
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.validators.task import objective_facts

CONTEXT_TOKENS: Final = 8192  # of a sequence where no batch is typed, or the model's own if they are fewer


@dataclass(frozen=True, kw_only=True)
class Fleets:
    """A config's fleets by strategy and number of ranks; `chosen` is the reason of a strategy chosen for it.

    `bases` are those of one node, by strategy: efficiencies are shares of their tokens a second and device.
    """

    choices: Choices
    rows: Sequence[SimulatedFleet]
    bases: dict[str, SimulatedFleet]
    chosen: str | None


def simulated_fleets(words: list[str], *, ranks: Sequence[int], strategies: Sequence[str]) -> list[Fleets]:
    """Simulate the config of a command line, or each of a sweep.

    Raises:
        ConfigurationError: The command line is wrong, or a run of it would be refused.
    """
    arguments = parse_arguments(words)
    from lmtrain.run.compose.compose import for_each_config

    found: list[Callable[[], Fleets]] = []

    def task(composed: dict[str, Any], choices: Choices) -> None:
        read = _with_batch(read_config(composed), choices.overrides)
        config = check(read.values, allowed=arguments.allowed_targets, typed=choices.overrides, place="paper")
        config, chosen = with_strategy(config)
        found.append(_prepared(config, ranks, strategies, choices=choices, chosen=chosen))

    for_each_config(task, arguments, config_name="train")
    return [run() for run in found]


def _prepared(
    config: RunConfig, ranks: Sequence[int], strategies: Sequence[str], *, choices: Choices, chosen: str | None
) -> Callable[[], Fleets]:
    """Check every fleet before the first is simulated, and return their simulations."""
    numbers = list(ranks or [config.num_ranks])
    a_node = min(config.cluster.devices_per_node, *numbers)
    under = [_under(config, word) for word in strategies] or [config]
    asked = [[_checked(_on_ranks(one, number)) for number in (a_node, *numbers)] for one in under]
    from lmtrain.run.planning.simulated import simulation  # torch: after the refusals of words

    rows = [simulation(one) for _, *others in asked for one in others]
    bases = {first.strategy.word: simulation(first) for first, *_ in asked}

    def run() -> Fleets:
        done = [row.run() for row in rows]
        known = {(row.strategy, row.batch.num_ranks): row for row in done}
        first = {word: known.get((word, base.batch.num_ranks)) or base.run() for word, base in bases.items()}
        return Fleets(choices=choices, rows=done, bases=first, chosen=chosen)

    return run


def _under(config: RunConfig, strategy: str) -> RunConfig:
    known = [word.partition("=")[2] for word in words_of(ModelSpread, lambda _: True)]
    if strategy not in known:
        raise ConfigurationError(
            f"--strategies must be of {', '.join(known)}, got {strategy}.{suggest(strategy, known)}"
        )
    return with_words(config, [f"strategy={strategy}"])


def _checked(config: RunConfig) -> RunConfig:
    """Return a config fit for simulation, as far as known without torch.

    Raises:
        ConfigurationError: Its device's or links' rates are not known, or its steps are not those simulated.
    """
    setting, cluster = planned_setting(config), config.cluster
    average = facts_of(config.weight_average.values, AverageFacts, allowed=config.allowed)
    cut = one_of(words_of(ModelSpread, lambda other: other.cuts_parameters))
    strategy = f"strategy={config.strategy.word}"
    objective = objective_facts(config)
    refusals = (
        (objective and f"task={objective.task}", "task=pretrain"),
        (setting.spread.meets_every_steps is not None and strategy, cut),
        (average and average.num_bytes and average.group, "weight_average=none"),
        (cluster.known_device is None and f"cluster={cluster.name}", "cluster=h100_8x, or another of a known device"),
        (
            cluster.num_nodes > 1
            and cluster.network_bytes_per_second is None
            and f"cluster.num_nodes={cluster.num_nodes}",
            "cluster.network_bytes_per_second=400GB, eight links of 400 Gbit/s",
        ),
        (
            setting.peak() is None and f"precision={config.precision.word}",
            "cluster.peak_flops, its dense peak in FLOP/s",
        ),
        (
            setting.spread.replicates and config.num_ranks > 1 and strategy,
            cut,
        ),  # DDP reads weights, which have no bytes
    )
    for value, nearest in refusals:
        if value:
            raise ConfigurationError(f"{value} cannot be simulated. Did you mean {nearest}, or `lmtrain plan`?")
    config.divided(config.batch)
    return config


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


def _on_ranks(config: RunConfig, number: int) -> RunConfig:
    """Return the config on another number of ranks, with as many tokens for each of them as before.

    Raises:
        ConfigurationError: An impossible number of ranks, or a rank's tokens are not whole.
    """
    if number == config.num_ranks:
        return config
    a_node = config.cluster.devices_per_node
    if number > a_node and number % a_node:
        nearest = max(1, round(number / a_node)) * a_node
        raise ConfigurationError(f"--ranks must be whole nodes of {a_node} devices, got {number}; nearest: {nearest}.")
    tokens = config.batch.tokens_per_step * number // config.num_ranks
    return with_words(config, (*words_of_devices(config, number), f"batch.tokens_per_step={tokens}"))
