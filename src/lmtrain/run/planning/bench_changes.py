"""Changes of a config that may shorten its steps: by its options, and by the timed parts of a step."""

from collections.abc import Iterator
from typing import Any, Final

from lmtrain.accounting.observed.bench import LARGE_OPTIMIZER, WORTHWHILE, Bench, Change
from lmtrain.accounting.options.parts import AttentionFacts, CompileFacts, RecomputeFacts
from lmtrain.run.compose.group_options import choosing_precisions, words_of
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.planning.tried_words import with_words
from lmtrain.run.run_config import RunConfig

UNKNOWN: Final = 0.1  # of a step: the assumed saving of a change where arithmetic gives none
LOG_EVERY_STEPS: Final = 10  # the default


def changes(config: RunConfig, found: Bench, *, can_compile: bool) -> list[Change]:
    """Return the changes, the largest expected gain first."""
    named = [*_options(config, can_compile=can_compile), *_settings(config, found), *_batch(config, found)]
    return sorted(named, key=lambda change: -(UNKNOWN if change.most_saved is None else change.most_saved))


def _options(config: RunConfig, *, can_compile: bool) -> Iterator[Change]:
    """Yield the options that are usually faster than a chosen one."""
    setting = planned_setting(config)
    for word in choosing_precisions():
        chosen = planned_setting(with_words(config, [word])).precision.bytes_of
        if setting.precision.bytes_of.activations > chosen.activations:
            yield Change(words=(word,), why=f"products in {chosen.matmul}")
    if setting.recompute.recomputes:
        for word in words_of(RecomputeFacts, lambda other: other.keeps_all):
            yield Change(words=(word,), why="computes no activation twice; takes more memory")
    if not setting.attention.chooses:
        place: dict[str, Any] = {"on_gpu": False, "is_compiled": setting.is_compiled}
        for word in words_of(AttentionFacts, lambda other: other.chooses, **place):
            yield Change(words=(word,), why="the fastest kernel of this device")
    if can_compile and not setting.is_compiled:
        for word in words_of(CompileFacts, lambda other: other.falls_back):
            yield Change(words=(word,), why="compiles for a minute or two, once", compiles=True)


def _settings(config: RunConfig, found: Bench) -> Iterator[Change]:
    """Yield the settings for the parts of a step that take long."""
    shares = found.parts.shares()
    if config.trainer.detect_anomaly:
        yield Change(words=("trainer.detect_anomaly=false",), why="every operation looks for NaN")
    if config.deterministic:
        yield Change(words=("deterministic=false",), why="some operations have a faster version whose result varies")
    if shares["data"] > WORTHWHILE:
        word = f"data.num_workers={max(2, 2 * int(config.data.get('num_workers') or 0))}"
        why = "batches are read during training"
        yield Change(words=(word,), why=why, most_saved=shares["data"], compiles=False)
    if shares["host"] > WORTHWHILE and config.run.log_every_steps < LOG_EVERY_STEPS:
        word, why = f"run.log_every_steps={LOG_EVERY_STEPS}", "metrics are fetched less often"
        yield Change(words=(word,), why=why, most_saved=shares["host"], compiles=False)


def _batch(config: RunConfig, found: Bench) -> Iterator[Change]:
    """Yield a wider micro batch, by taking the micro-steps of a step together or by a larger step."""
    batch, shares = found.batch, found.parts.shares()
    if batch.accumulation_micro_steps > 1:
        fewer = next(
            num for num in range(2, batch.accumulation_micro_steps + 1) if not batch.accumulation_micro_steps % num
        )
        word = f"batch.micro_batch_sequences={batch.micro_batch_sequences * fewer}"
        yield Change(words=(word,), why="more at a time keeps the device busier; takes more memory")
        return
    words = [f"batch.tokens_per_step={2 * batch.tokens_per_step}"]
    if config.batch.micro_batch_sequences is not None:
        words.append(f"batch.micro_batch_sequences={2 * batch.micro_batch_sequences}")
    fixed = shares["optimizer"] + shares["host"]
    most = fixed / 2 if fixed > WORTHWHILE else None
    yield Change(words=tuple(words), why="half as many steps for the same tokens", most_saved=most)
    if shares["optimizer"] > LARGE_OPTIMIZER and config.optimizer.get("compile_update") is False:
        words = ["optimizer.compile_update=true"]
        yield Change(words=tuple(words), why="fewer passes over the weights", most_saved=shares["optimizer"] / 2)
