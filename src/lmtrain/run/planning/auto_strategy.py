"""The choice of a strategy: the first to fit the memory of a known device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from lmtrain.accounting.model.model_facts import ModelFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.training_plan.fit import largest_micro_batch, memory_of
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import words_of
from lmtrain.run.planning.auto_recompute import with_recompute
from lmtrain.run.planning.fit_setting import fit_setting
from lmtrain.run.planning.known_models import model_facts
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.planning.tried_words import with_words
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.objective import example_rows
from lmtrain.run.validators.optimizer import require_settings

MICRO_BATCH: Final = "batch.micro_batch_sequences"
Kind = Callable[[ModelSpread], bool]
WHOLE: Final[Kind] = lambda spread: spread.replicates and not spread.chooses  # noqa: E731
IN_A_NODE: Final[Kind] = lambda spread: spread.most_shards is not None and spread.tensor_ranks == 1  # noqa: E731
OVER_ALL: Final[Kind] = lambda spread: spread.shards_most  # noqa: E731
TOGETHER: Final[Kind] = lambda spread: spread.tensor_ranks > 1 and spread.shards_over is not None  # noqa: E731


@dataclass(frozen=True)
class Tried:
    """A config with another strategy, and the bytes of one of its devices, at least."""

    option: str
    config: RunConfig
    num_bytes: int

    def told(self, verb: str) -> str:
        """Return a few words."""
        return f"{self.option} {verb} {_gb(self.num_bytes)}"


def with_strategy(config: RunConfig) -> tuple[RunConfig, str | None]:
    """Return the config with the strategy chosen, and the reason; as it is, where nothing chooses or can be told.

    Copies of the model, where one fits a device; else, on several nodes, a copy a node; else shards over all ranks;
    else these two with their savings; else tensor groups too, also where nothing fits. The micro batch is the plan's:
    `auto` the largest that fits each, another as it is asked for, and one example where that fits none.
    Activations are measured only where the rest fits.

    Raises:
        ConfigurationError: No strategy divides the batch.
    """
    device_bytes = config.cluster.device_bytes
    if not config.spread.chooses or config.num_ranks == 1 or device_bytes is None:
        return config, None
    is_auto = config.batch.micro_batch_sequences == "auto"
    least = f"{MICRO_BATCH}={example_rows(config)}"
    single = with_words(config, [least])
    tried: list[Tried] = []
    asked = config
    for asked in (config,) if is_auto or config.batch == single.batch else (config, single):
        tried = list(_tried(asked, device_bytes))
        if tried and tried[-1].num_bytes <= device_bytes:
            break
    if not tried:
        config.divided(single.batch if is_auto else config.batch)
        return config, None  # the plan names the fault
    *others, last = tried
    fits = last.num_bytes <= device_bytes
    told = [f"{last.told('takes' if fits else 'needs')} of {_gb(device_bytes)} a device"]
    told[0] += f" with {least}" * (asked is single)
    told += [one.told("needs") for one in others]
    chosen = config.changed(strategy=last.config.strategy)
    return chosen, f"strategy={config.strategy.word}: {'' if fits else 'nothing fits; '}{'; '.join(told)}"


def _tried(config: RunConfig, device_bytes: int) -> Iterator[Tried]:
    """Give strategies and their memory, from copies to the smallest parts, up to the first to fit."""
    facts: ModelFacts | None = None
    for word, saves in _words(config):
        try:
            changed = _changed(config, word)
            savings = _savings(config, changed) if saves else ()
            if saves and not savings:
                continue
            changed = with_words(changed, savings)
            require_parts_of_strategy(changed)
            held, facts = _held(changed, facts, device_bytes)
        except ConfigurationError:  # a batch, an optimizer, a layer or a part that this one does not take
            continue
        if held <= device_bytes or not saves:
            yield Tried(" ".join((word.partition("=")[2], *savings)), changed, held)
        if held <= device_bytes:
            return


def _held(config: RunConfig, facts: ModelFacts | None, device_bytes: int) -> tuple[int, ModelFacts]:
    """Return the bytes of a device, at least, and the facts behind them: `facts` where already these are too many."""
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
        most = largest_micro_batch(fit, most) or config.divided(
            replace(batch, micro_batch_sequences=setting.example_rows)
        )
    return memory_of(fit, most).total, facts


def _savings(asked: RunConfig, config: RunConfig) -> tuple[str, ...]:
    """Return the words of a strategy's savings, without typed settings."""
    spread = config.spread
    free = (word for word in spread.savings if word.partition("=")[0] not in asked.strategy.values)
    return tuple(f"{spread.group}.{word}" for word in free)


def require_parts_of_strategy(config: RunConfig) -> None:
    """Let a strategy look at the run's optimizer, and one that shares layers out at the model too: this needs torch.

    Raises:
        ConfigurationError: One of them is not for it.
    """
    require_settings(config)
    if config.spread.tensor_ranks > 1 or config.spread.context_ranks > 1:
        from lmtrain.run.builders.strategy import require_strategy_on_paper

        require_strategy_on_paper(config)


def _changed(config: RunConfig, word: str) -> RunConfig:
    """Return the config with another strategy, the settings of both kept."""
    own = config.strategy.values
    new = with_words(config, [word]).strategy.values
    kept = {key: own[key] for key in new if key in own and not key.startswith("_")}
    return config.changed(strategy={**new, **kept})


def _words(config: RunConfig) -> Iterator[tuple[str, bool]]:
    """Give strategies in the order of their choice, each as it is or with its savings."""
    parted = (*((IN_A_NODE,) if config.trainer.num_nodes > 1 else ()), OVER_ALL)
    turns = ((WHOLE, False), *((kind, saves) for saves in (False, True) for kind in parted))
    for kind, saves in (*turns, (TOGETHER, False), (TOGETHER, True)):
        for word in words_of(ModelSpread, kind):
            yield word, saves


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
