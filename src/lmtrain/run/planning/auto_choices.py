"""`recompute=auto` and `strategy=auto`: the first option that fits the memory of a device."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from lmtrain.accounting.batches import MICRO_BATCH, BatchPlan
from lmtrain.accounting.model.model_facts import ModelFacts
from lmtrain.accounting.options.parts import RecomputeFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.training_plan.fit import Setting, fits, largest_micro_batch, memory_of
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import words_of
from lmtrain.run.planning.known_models import model_facts
from lmtrain.run.planning.setting import fit_setting, planned_setting
from lmtrain.run.planning.tried_words import with_words
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.validators.optimizer import require_settings
from lmtrain.run.validators.task import example_rows

# Fewer rows than this leave a large GPU's units without work in products of a width of 1,024 and more.
ENOUGH_TOKENS: Final = 8_192
LEAST_FIRST: Final[tuple[Callable[[RecomputeFacts], bool], ...]] = (
    lambda facts: facts.keeps_all,
    lambda facts: facts.recomputes and facts.is_cut,
    lambda facts: facts.keeps_least,
)


def chooses_recompute(config: RunConfig) -> bool:
    """Return whether the config leaves the recomputation to the plan."""
    found = facts_of(config.recompute.values, RecomputeFacts, allowed=config.allowed)
    return found is not None and found.chooses


def setting_on_paper(config: RunConfig) -> Setting:
    """Return the inputs of the memory of a device in the hardware table."""
    planned = planned_setting(config)
    return fit_setting(planned, model_facts(config, planned))


def with_recompute(
    config: RunConfig, setting_of: Callable[[RunConfig], Setting] = setting_on_paper
) -> tuple[RunConfig, str | None]:
    """Return the config with the chosen recomputation, and the reason; unchanged where it is typed.

    The first is taken that leaves room for ENOUGH_TOKENS at a time, or a rank's whole share of a step; else the one
    with the most room. A typed micro batch has to fit. `setting_of` gives the inputs of the memory of a config.
    """
    if not chooses_recompute(config):
        return config, None
    chosen, most, device_bytes = config, -1, 0
    for word in (word for kind in LEAST_FIRST for word in words_of(RecomputeFacts, kind)):
        changed = with_words(config, [word])
        setting = setting_of(changed)
        if setting.device_bytes is None:
            return changed, f"{config.recompute.word}: the device's memory is known only at the start of a run"
        device_bytes = setting.device_bytes
        batch = _fitting(setting, changed)
        num_tokens = batch.micro_batch_tokens if batch else 0
        if num_tokens > most:
            chosen, most = changed, num_tokens
        is_whole = batch and batch.accumulation_micro_steps == 1
        if batch and (is_whole or num_tokens >= ENOUGH_TOKENS or not config.batch.is_auto):
            break
    room = f"{most:,} tokens at a time fit" if most > 0 else "nothing fits"
    return chosen, f"recompute={config.recompute.word}: {chosen.recompute.word}, {room} {device_bytes / 1e9:.1f} GB"


def _fitting(setting: Setting, config: RunConfig) -> BatchPlan | None:
    """Return the batch as typed, or the largest, if it fits."""
    batch = config.divided(config.batch)
    if config.batch.is_auto:
        return largest_micro_batch(setting, batch)
    return batch if fits(setting, batch) else None


Kind = Callable[[ModelSpread], bool]
WHOLE: Final[Kind] = lambda spread: spread.replicates and not spread.chooses  # noqa: E731
IN_A_NODE: Final[Kind] = lambda spread: spread.most_shards is not None and spread.tensor_ranks == 1  # noqa: E731
OVER_ALL: Final[Kind] = lambda spread: spread.shards_most  # noqa: E731
TOGETHER: Final[Kind] = lambda spread: spread.tensor_ranks > 1 and spread.shards_over is not None  # noqa: E731


def with_strategy(config: RunConfig) -> tuple[RunConfig, str | None]:
    """Return the config with the chosen strategy, and the reason; unchanged where it is typed, or nothing is known.

    Copies of the model, where one fits a device; else, on several nodes, a copy per node; else shards over all ranks;
    else these two with their savings; else tensor groups too, also where nothing fits. The micro batch is the plan's:
    `auto` the largest that fits each, another as it is typed, and one example where that fits none.

    Raises:
        ConfigurationError: No strategy divides the batch.
    """
    device_bytes = config.cluster.device_bytes
    if not config.spread.chooses or config.num_ranks == 1 or device_bytes is None:
        return config, None
    least = f"{MICRO_BATCH}={example_rows(config)}"
    single = with_words(config, [least])
    is_settled = config.batch.is_auto or config.batch == single.batch
    found: tuple[RunConfig, str, int] | None = None
    for asked in (config,) if is_settled else (config, single):
        found = _first_that_fits(asked, device_bytes) or found
        if found and found[-1] <= device_bytes:
            break
    if found is None:
        config.divided(single.batch if config.batch.is_auto else config.batch)
        return config, None  # the plan names the fault
    changed, option, held = found
    verdict = "takes" if held <= device_bytes else "needs"
    reason = f"{option} {verdict} {held / 1e9:.1f} GB of {device_bytes / 1e9:.1f} GB per device"
    reason = reason if held <= device_bytes else f"nothing fits; {reason}"
    return config.changed(strategy=changed.strategy), f"strategy={config.strategy.word}: {reason}"


def _first_that_fits(config: RunConfig, device_bytes: int) -> tuple[RunConfig, str, int] | None:
    """Return the first strategy that fits, else the last that is possible, with its name and a device's bytes."""
    facts: ModelFacts | None = None
    found: tuple[RunConfig, str, int] | None = None
    for word, saves in _strategies(config):
        try:
            changed = _with_settings_kept(config, word)
            savings = _savings(config, changed) if saves else ()
            if saves and not savings:
                continue
            changed = with_words(changed, savings)
            require_parts_of_strategy(changed)
            held, facts = _held(changed, facts, device_bytes)
        except ConfigurationError:  # a batch, an optimizer, a layer or a part that this one does not take
            continue
        if held <= device_bytes or not saves:
            found = changed, " ".join((word.partition("=")[2], *savings)), held
        if held <= device_bytes:
            break
    return found


def _strategies(config: RunConfig) -> Iterator[tuple[str, bool]]:
    """Yield strategies in the order of their choice, each as it is or with its savings."""
    parted = (*((IN_A_NODE,) if config.trainer.num_nodes > 1 else ()), OVER_ALL)
    turns = ((WHOLE, False), *((kind, saves) for saves in (False, True) for kind in parted))
    for kind, saves in (*turns, (TOGETHER, False), (TOGETHER, True)):
        for word in words_of(ModelSpread, kind):
            yield word, saves


def _held(config: RunConfig, facts: ModelFacts | None, device_bytes: int) -> tuple[int, ModelFacts]:
    """Return the bytes of a device, and the facts behind them; without activations where the rest is too large."""
    batch = config.divided(config.batch)
    least = memory_of(fit_setting(planned_setting(config), facts), batch).static if facts else 0
    if facts and least > device_bytes:
        return least, facts
    settled, _ = with_recompute(config)
    setting = planned_setting(settled)
    facts = model_facts(settled, setting)
    fit = fit_setting(setting, facts)
    if config.batch.is_auto:
        rows = setting.example_rows
        one = replace(batch, sequences_per_micro_step=rows, accumulation_micro_steps=batch.sequences_per_rank // rows)
        batch = largest_micro_batch(fit, batch) or one
    return memory_of(fit, batch).total, facts


def _savings(asked: RunConfig, config: RunConfig) -> tuple[str, ...]:
    """Return a strategy's savings, without typed settings."""
    spread = config.spread
    free = (word for word in spread.savings if word.partition("=")[0] not in asked.strategy.values)
    return tuple(f"{spread.group}.{word}" for word in free)


def _with_settings_kept(config: RunConfig, word: str) -> RunConfig:
    """Return the config with another strategy, the settings of both kept."""
    own, new = config.strategy.values, with_words(config, [word]).strategy.values
    kept = {key: own[key] for key in new if key in own and not key.startswith("_")}
    return config.changed(strategy={**new, **kept})


def require_parts_of_strategy(config: RunConfig) -> None:
    """Let a strategy check the run's optimizer, and one that cuts layers the model too, which needs torch.

    Raises:
        ConfigurationError: One of them is not for it.
    """
    require_settings(config)
    if config.spread.tensor_ranks > 1 or config.spread.context_ranks > 1:
        from lmtrain.run.builders.model import require_strategy_on_paper

        require_strategy_on_paper(config)
