"""`recompute=auto` and `strategy=auto`: the first option that fits the memory of a device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class TriedRecompute:
    """A config with another recomputation, and its fitting batch, None without one."""

    option: str
    config: RunConfig
    batch: BatchPlan | None
    num_bytes: int = 0

    @property
    def num_tokens(self) -> int:
        """Return the tokens of one forward pass."""
        return 0 if self.batch is None else self.batch.micro_batch_sequences * self.batch.context_tokens

    @property
    def line(self) -> str:
        """Return the option with the room that it leaves."""
        return (
            f"recompute={self.option} {f'leaves room for {self.num_tokens:,} tokens' if self.batch else 'does not fit'}"
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
    tried: list[TriedRecompute] = []
    device_bytes = 0
    for word in (word for kind in LEAST_FIRST for word in words_of(RecomputeFacts, kind)):
        changed = with_words(config, [word])
        setting = setting_of(changed)
        if setting.device_bytes is None:
            return changed, f"{config.recompute.word}: the device's memory is known only at the start of a run"
        device_bytes = setting.device_bytes
        tried.append(_tried_recompute(word, changed, setting))
        if _is_enough(tried[-1], config):
            break
    chosen = tried[-1] if _is_enough(tried[-1], config) else max(tried, key=lambda one: one.num_tokens)
    held = f"{device_bytes / 1e9:.1f} GB"
    reason = f"nothing fits {held}, recompute={chosen.option} is planned"
    if chosen.batch:
        reason = f"{chosen.option}, {chosen.num_tokens:,} tokens at a time take {chosen.num_bytes / 1e9:.1f} of {held}"
    others = [one.line for one in tried if one is not chosen]
    return chosen.config, "; ".join([f"recompute={config.recompute.word}: {reason}", *others])


def _tried_recompute(word: str, config: RunConfig, setting: Setting) -> TriedRecompute:
    asked = config.batch
    if asked.micro_batch_sequences == "auto":
        batch = largest_micro_batch(setting, config.divided(replace(asked, micro_batch_sequences=None)))
    else:
        batch = config.divided(asked)
        batch = batch if fits(setting, batch) else None
    num_bytes = memory_of(setting, batch).total if batch else 0
    return TriedRecompute(word.partition("=")[2], config, batch, num_bytes)


def _is_enough(tried: TriedRecompute, config: RunConfig) -> bool:
    is_typed = config.batch.micro_batch_sequences != "auto"
    batch = tried.batch
    return batch is not None and (is_typed or batch.accumulation_micro_steps == 1 or tried.num_tokens >= ENOUGH_TOKENS)


Kind = Callable[[ModelSpread], bool]
WHOLE: Final[Kind] = lambda spread: spread.replicates and not spread.chooses  # noqa: E731
IN_A_NODE: Final[Kind] = lambda spread: spread.most_shards is not None and spread.tensor_ranks == 1  # noqa: E731
OVER_ALL: Final[Kind] = lambda spread: spread.shards_most  # noqa: E731
TOGETHER: Final[Kind] = lambda spread: spread.tensor_ranks > 1 and spread.shards_over is not None  # noqa: E731


@dataclass(frozen=True)
class TriedStrategy:
    """A config with another strategy, and the bytes of one of its devices, at least."""

    option: str
    config: RunConfig
    num_bytes: int


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
    is_auto = config.batch.micro_batch_sequences == "auto"
    least = f"{MICRO_BATCH}={example_rows(config)}"
    single = with_words(config, [least])
    tried: list[TriedStrategy] = []
    asked = config
    for asked in (config,) if is_auto or config.batch == single.batch else (config, single):
        tried = list(_tried_strategies(asked, device_bytes))
        if tried and tried[-1].num_bytes <= device_bytes:
            break
    if not tried:
        config.divided(single.batch if is_auto else config.batch)
        return config, None  # the plan names the fault
    *others, last = tried
    fits_device = last.num_bytes <= device_bytes
    verb, size = ("takes", f" with {least}" * (asked is single)) if fits_device else ("needs", "")
    lines = [f"{last.option} {verb} {_gb(last.num_bytes)} of {_gb(device_bytes)} per device{size}"]
    lines += [f"{one.option} needs {_gb(one.num_bytes)}" for one in others]
    chosen = config.changed(strategy=last.config.strategy)
    return chosen, f"strategy={config.strategy.word}: {'' if fits_device else 'nothing fits; '}{'; '.join(lines)}"


def _tried_strategies(config: RunConfig, device_bytes: int) -> Iterator[TriedStrategy]:
    """Yield strategies and their memory, from copies to the smallest parts, up to the first that fits."""
    facts: ModelFacts | None = None
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
            yield TriedStrategy(" ".join((word.partition("=")[2], *savings)), changed, held)
        if held <= device_bytes:
            return


def _strategies(config: RunConfig) -> Iterator[tuple[str, bool]]:
    """Yield strategies in the order of their choice, each as it is or with its savings."""
    parted = (*((IN_A_NODE,) if config.trainer.num_nodes > 1 else ()), OVER_ALL)
    turns = ((WHOLE, False), *((kind, saves) for saves in (False, True) for kind in parted))
    for kind, saves in (*turns, (TOGETHER, False), (TOGETHER, True)):
        for word in words_of(ModelSpread, kind):
            yield word, saves


def _held(config: RunConfig, facts: ModelFacts | None, device_bytes: int) -> tuple[int, ModelFacts]:
    """Return the bytes of a device, and the facts behind them; without activations where the rest is too large."""
    batch, is_auto = config.batch, config.batch.micro_batch_sequences == "auto"
    most = config.divided(replace(batch, micro_batch_sequences=None) if is_auto else batch)
    least = memory_of(fit_setting(planned_setting(config), facts), most).static if facts else 0
    if facts and least > device_bytes:
        return least, facts
    settled, _ = with_recompute(config)
    setting = planned_setting(settled)
    facts = model_facts(settled, setting)
    fit = fit_setting(setting, facts)
    if is_auto:
        one = config.divided(replace(batch, micro_batch_sequences=setting.example_rows))
        most = largest_micro_batch(fit, most) or one
    return memory_of(fit, most).total, facts


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


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
