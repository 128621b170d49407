"""Whether a run's micro-steps can be recorded, decided from a config alone: for plans too, without torch.

Only parts known to be right under recording are allowed: a wrong recorded step does not fail.
"""

from collections.abc import Iterator

from lmtrain.accounting.options.parts import RecomputeFacts
from lmtrain.accounting.options.precision import UNTRIED, PrecisionFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of


def require_recordable(config: RunConfig, *, num_ranks: int, device: str) -> None:
    """Refuse `compile.cuda_graphs` where it cannot be, on that kind of device.

    Raises:
        ConfigurationError: The run has a part impossible or untried in a recorded step.
    """
    if config.compile.get("cuda_graphs", False):
        for obstacle, fix in _obstacles(config, num_ranks=num_ranks, device=device):
            raise ConfigurationError(f"compile.cuda_graphs=true: {obstacle}; nearest valid: {fix}.")


def _obstacles(config: RunConfig, *, num_ranks: int, device: str) -> Iterator[tuple[str, str]]:
    """Yield each obstacle, and its alternative."""
    precision, recompute, strategy = (node.word for node in (config.precision, config.recompute, config.strategy))
    spread = facts_of(config.strategy.values, ModelSpread, allowed=config.allowed) or ModelSpread()
    formats = facts_of(config.precision.values, PrecisionFacts, allowed=config.allowed, has_bf16=True)
    recomputation = facts_of(config.recompute.values, RecomputeFacts, allowed=config.allowed) or RecomputeFacts()
    if device != "cuda":
        yield f"a {device} device has none", "compile.cuda_graphs=false"
    if spread.reduces_over(num_ranks):
        ranks = "on 1 rank" if num_ranks == 1 else f"on {num_ranks} ranks"
        alone = one_of(words_of(ModelSpread, lambda other: other.most_ranks == 1))
        yield f"strategy={strategy} {ranks} sums gradients in the backward pass", f"{alone} trainer.devices=1"
    if reason := formats.unrecordable if formats else UNTRIED:
        tried = words_of(PrecisionFacts, lambda other: other.unrecordable is None, has_bf16=True)
        yield f"precision={precision} {reason}", one_of(tried)
    if recomputation.recomputes:
        yield (
            f"recompute={recompute} reads the state of random numbers, which a recording forbids",
            one_of(words_of(RecomputeFacts, lambda other: other.keeps_all)),
        )
    if config.trainer.detect_anomaly:
        yield "trainer.detect_anomaly=true looks at every operation", "trainer.detect_anomaly=false"
