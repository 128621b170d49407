"""Whether a run's micro-steps can be recorded, told from a config alone: for plans too, which do without torch.

What is not known to be right when it is recorded is refused: a recorded step that is wrong does not fail.
"""

from collections.abc import Iterator
from typing import Final

from lmtrain.composition.run_config import RunConfig
from lmtrain.errors import ConfigurationError

PRECISIONS: Final = ("auto", "fp32", "tf32", "bf16_mixed", "bf16_true")


def require_recordable(config: RunConfig, *, num_ranks: int, device: str) -> None:
    """Refuse `compile.cuda_graphs` where it cannot be, on that kind of device.

    Raises:
        ConfigurationError: The run does what a recorded step cannot do, or what nobody has tried in one.
    """
    if config.compile.get("cuda_graphs", False):
        for obstacle, fix in _obstacles(config, num_ranks=num_ranks, device=device):
            raise ConfigurationError(f"compile.cuda_graphs=true: {obstacle}; nearest valid: {fix}.")


def _obstacles(config: RunConfig, *, num_ranks: int, device: str) -> Iterator[tuple[str, str]]:
    """Yield what stands in the way, and what would not."""
    precision, recompute, strategy = (node.word for node in (config.precision, config.recompute, config.strategy))
    if device != "cuda":
        yield f"a {device} device has none", "compile.cuda_graphs=false"
    if num_ranks > 1 or strategy not in ("auto", "single"):
        ranks = "on 1 rank" if num_ranks == 1 else f"on {num_ranks} ranks"
        yield f"strategy={strategy} {ranks} sums gradients in the backward pass", "strategy=single trainer.devices=1"
    if precision == "fp16_mixed":
        yield "precision=fp16_mixed scales its loss anew as it goes", "precision=bf16_mixed"
    elif precision not in PRECISIONS:
        yield f"precision={precision} has not been tried in a recorded step", "precision=bf16_mixed"
    if recompute != "none":
        yield (
            f"recompute={recompute} reads the state of random numbers, which a recording forbids",
            "recompute=none",
        )
    if config.trainer.detect_anomaly:
        yield "trainer.detect_anomaly=true looks at every operation", "trainer.detect_anomaly=false"
