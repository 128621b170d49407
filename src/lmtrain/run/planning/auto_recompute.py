"""A recomputation in place of `auto`: the least with room on a device for enough tokens at a time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.options.parts import RecomputeFacts
from lmtrain.accounting.training_plan.fit import Setting, fits, largest_micro_batch, memory_of
from lmtrain.run.compose.group_options import words_of
from lmtrain.run.planning.fit_setting import fit_setting
from lmtrain.run.planning.known_models import model_facts
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.planning.tried_words import with_words
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of

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
    least_words: str
    num_bytes: int = 0

    @property
    def num_tokens(self) -> int:
        """Return the tokens of one forward pass."""
        return 0 if self.batch is None else self.batch.micro_batch_sequences * self.batch.context_tokens

    @property
    def told(self) -> str:
        """Return a few words."""
        if self.batch:
            return f"recompute={self.option} leaves room for {self.num_tokens:,} tokens"
        if self.config.batch.micro_batch_sequences == "auto":
            return f"recompute={self.option}: not {self.least_words} fits"
        return f"recompute={self.option}: the micro batch does not fit"


def chooses_recompute(config: RunConfig) -> bool:
    """Tell whether a plan is to choose."""
    found = facts_of(config.recompute.values, RecomputeFacts, allowed=config.allowed)
    return found is not None and found.chooses


def setting_on_paper(config: RunConfig) -> Setting:
    """Return the setting behind the memory of a device in the table."""
    planned = planned_setting(config)
    return fit_setting(planned, model_facts(config, planned))


def with_recompute(
    config: RunConfig, setting_of: Callable[[RunConfig], Setting] = setting_on_paper
) -> tuple[RunConfig, str | None]:
    """Return the config with the recomputation chosen, and the reason; as it is, where nothing chooses.

    The first is taken that leaves room for ENOUGH_TOKENS at a time, or a rank's whole share of a step; else the one
    with the most room. A typed micro batch has to fit. `setting_of` gives the memory's setting of a config.
    """
    if not chooses_recompute(config):
        return config, None
    tried: list[TriedRecompute] = []
    for kind in LEAST_FIRST:
        for word in words_of(RecomputeFacts, kind):
            changed = with_words(config, [word])
            setting = setting_of(changed)
            if setting.device_bytes is None:
                return changed, f"{config.recompute.word}: the device's memory is known at the start of a run alone"
            tried.append(_tried(word, changed, setting))
            if _is_enough(tried[-1], config):
                return _chosen(config, tried, tried[-1], setting.device_bytes)
    best = max(tried, key=lambda one: one.num_tokens)
    return _chosen(config, tried, best, int(setting_of(best.config).device_bytes or 0))


def _tried(word: str, config: RunConfig, setting: Setting) -> TriedRecompute:
    asked, option = config.batch, word.partition("=")[2]
    if asked.micro_batch_sequences == "auto":
        whole = config.divided(replace(asked, micro_batch_sequences=None))
        batch = largest_micro_batch(setting, whole)
    else:
        batch = config.divided(asked)
        batch = batch if fits(setting, batch) else None
    num_bytes = memory_of(setting, batch).total if batch else 0
    return TriedRecompute(option, config, batch, setting.least_words, num_bytes)


def _is_enough(tried: TriedRecompute, config: RunConfig) -> bool:
    if tried.batch is None:
        return False
    is_typed = config.batch.micro_batch_sequences != "auto"
    is_whole = tried.batch.accumulation_micro_steps == 1
    return is_typed or is_whole or tried.num_tokens >= ENOUGH_TOKENS


def _chosen(
    config: RunConfig, tried: list[TriedRecompute], chosen: TriedRecompute, device_bytes: int
) -> tuple[RunConfig, str]:
    others = [one.told for one in tried if one is not chosen]
    held = f"{device_bytes / 1e9:.1f} GB"
    room = f"{chosen.option}, {chosen.num_tokens:,} tokens at a time take {chosen.num_bytes / 1e9:.1f} of {held}"
    told = room if chosen.batch else f"nothing fits {held}, recompute={chosen.option} is planned"
    return chosen.config, "; ".join([f"recompute={config.recompute.word}: {told}", *others])
