"""Changes of a config that may shorten its steps: by its options, and by the timed parts of a step."""

from collections.abc import Iterator
from typing import Any, Final

from lmtrain.accounting.batches import MICRO_BATCH
from lmtrain.accounting.observed.bench import LARGE_OPTIMIZER, WORTHWHILE, Bench, Change
from lmtrain.accounting.options.parts import AttentionFacts, CompileFacts, RecomputeFacts
from lmtrain.run.compose.group_options import choosing_precisions, words_of
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.planning.tried_words import with_words
from lmtrain.run.run_config import RunConfig

LOG_EVERY_STEPS: Final = 10  # the default


def changes(config: RunConfig, found: Bench) -> Iterator[Change]:
    """Yield the settings for the parts of a step that take long, then the options that are usually faster."""
    shares = found.parts.shares()
    if shares["data"] > WORTHWHILE:
        num_workers = max(2, 2 * int(config.data.get("num_workers") or 0))
        yield Change((f"data.num_workers={num_workers}",), "batches are read during training")
    if shares["host"] > WORTHWHILE and config.run.log_every_steps < LOG_EVERY_STEPS:
        yield Change((f"run.log_every_steps={LOG_EVERY_STEPS}",), "metrics are fetched less often")
    if shares["optimizer"] > LARGE_OPTIMIZER and config.optimizer.get("compile_update") is False:
        yield Change(("optimizer.compile_update=true",), "fewer passes over the weights")
    if config.trainer.detect_anomaly:
        yield Change(("trainer.detect_anomaly=false",), "every operation looks for NaN")
    if config.deterministic:
        yield Change(("deterministic=false",), "some operations have a faster version whose result varies")
    yield from _options(config)
    if found.batch.accumulation_micro_steps > 1:
        more = f"{MICRO_BATCH}={2 * found.batch.sequences_per_micro_step}"
        yield Change((more,), "more at a time keeps the device busier; takes more memory")
    else:
        more = f"batch.tokens_per_step={2 * found.batch.tokens_per_step}"
        yield Change((more, f"{MICRO_BATCH}=null"), "half as many steps for the same tokens")


def _options(config: RunConfig) -> Iterator[Change]:
    setting = planned_setting(config)
    for word in choosing_precisions():
        chosen = planned_setting(with_words(config, [word])).precision.bytes_of
        if setting.precision.bytes_of.activations > chosen.activations:
            yield Change((word,), f"products in {chosen.matmul}")
    if setting.recompute.recomputes:
        for word in words_of(RecomputeFacts, lambda other: other.keeps_all):
            yield Change((word,), "computes no activation twice; takes more memory")
    if not setting.attention.chooses:
        place: dict[str, Any] = {"on_gpu": False, "is_compiled": setting.is_compiled}
        for word in words_of(AttentionFacts, lambda other: other.chooses, **place):
            yield Change((word,), "the fastest kernel of this device")
    if not setting.is_compiled:
        for word in words_of(CompileFacts, lambda other: other.falls_back):
            yield Change((word,), "compiles for a minute or two, once")
