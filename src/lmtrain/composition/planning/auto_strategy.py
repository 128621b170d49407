"""The choice of a strategy: the first to fit the memory of a known device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from lmtrain.accounting.batches import Batch
from lmtrain.accounting.model.model_facts import ModelFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.training_plan.fit import memory_of
from lmtrain.composition.command_line.group_options import words_of
from lmtrain.composition.planning.fit_setting import fit_setting
from lmtrain.composition.planning.known_models import model_facts
from lmtrain.composition.planning.setting import planned_setting
from lmtrain.composition.planning.tried_words import with_words
from lmtrain.composition.rules.optimizer import require_settings
from lmtrain.composition.run_config import RunConfig
from lmtrain.errors import ConfigurationError

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
    else tensor groups too, also where nothing fits. A micro batch of a typed size is tried first, then one sequence.
    Activations are measured only where the rest fits.

    Raises:
        ConfigurationError: No strategy divides the batch.
    """
    device_bytes = config.cluster.device_bytes
    if not config.spread.chooses or config.num_ranks == 1 or device_bytes is None:
        return config, None
    asked, single = config.batch, replace(config.batch, micro_batch_sequences=1)
    tried: list[Tried] = []
    batch = single
    for batch in dict.fromkeys((asked, single)) if isinstance(asked.micro_batch_sequences, int) else (single,):
        tried = list(_tried(config, batch, device_bytes))
        if tried and tried[-1].num_bytes <= device_bytes:
            break
    if not tried:
        config.divided(single if asked.micro_batch_sequences == "auto" else asked)
        return config, None  # the plan names the fault
    *others, last = tried
    fits = last.num_bytes <= device_bytes
    is_smaller = batch is single and asked.micro_batch_sequences not in (1, "auto")
    told = [f"{last.told('takes' if fits else 'needs')} of {_gb(device_bytes)} a device"]
    told[0] += " with batch.micro_batch_sequences=1" * is_smaller
    told += [one.told("needs") for one in others]
    return last.config, f"strategy={config.strategy.word}: {'' if fits else 'nothing fits; '}{'; '.join(told)}"


def _tried(config: RunConfig, batch: Batch, device_bytes: int) -> Iterator[Tried]:
    """Give strategies and their memory, from copies to the smallest parts, up to the first to fit."""
    facts: ModelFacts | None = None
    for word in _words(config):
        try:
            changed = _changed(config, word)
            require_parts_of_strategy(changed)
            setting, divided = planned_setting(changed), changed.divided(batch)
            if facts is None or memory_of(fit_setting(setting, facts), divided).static <= device_bytes:
                facts = model_facts(changed, setting)
                held = memory_of(fit_setting(setting, facts), divided).total
            else:
                held = memory_of(fit_setting(setting, facts), divided).static
        except ConfigurationError:  # a batch, an optimizer, a layer or a part that this one does not take
            continue
        yield Tried(word.partition("=")[2], changed, held)
        if held <= device_bytes:
            return


def require_parts_of_strategy(config: RunConfig) -> None:
    """Let a strategy look at the run's optimizer, and one that cuts layers at the model too: this needs torch.

    Raises:
        ConfigurationError: One of them is not for it.
    """
    require_settings(config)
    if config.spread.tensor_ranks > 1:
        from lmtrain.composition.parts.strategy import require_strategy_on_paper

        require_strategy_on_paper(config)


def _changed(config: RunConfig, word: str) -> RunConfig:
    """Return the config with another strategy, the settings of both kept."""
    own = config.strategy.values
    new = with_words(config, [word]).strategy.values
    kept = {key: own[key] for key in new if key in own and not key.startswith("_")}
    return config.changed(strategy={**new, **kept})


def _words(config: RunConfig) -> Iterator[str]:
    several_nodes = config.trainer.num_nodes > 1
    for kind in (WHOLE, *((IN_A_NODE,) if several_nodes else ()), OVER_ALL, TOGETHER):
        yield from words_of(ModelSpread, kind)


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
