"""Whether a run's micro-steps can be recorded as a CUDA graph, said before anything is allocated.

What is not known to be right when it is recorded is refused: a recorded step that is wrong does not fail.
"""

from collections.abc import Iterator
from typing import Any, Final

from lmtrain.composition.kernels import device_type
from lmtrain.composition.targets import word_of
from lmtrain.errors import ConfigurationError
from lmtrain.training.micro_step_graph import CudaGraph, MakeGraph

PRECISIONS: Final = ("auto", "fp32", "tf32", "bf16_mixed", "bf16_true")


def graphs_of(config: dict[str, Any]) -> MakeGraph | None:
    """Return what records micro-steps, or None where that was not asked for.

    Raises:
        ConfigurationError: The run does what a recorded step cannot do, or what nobody has tried in one.
    """
    if not config["compile"].get("cuda_graphs", False):
        return None
    for obstacle, fix in _obstacles(config):
        raise ConfigurationError(f"compile.cuda_graphs=true: {obstacle}; nearest valid: {fix}.")
    return CudaGraph


def _obstacles(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what stands in the way, and what would not."""
    trainer = config["trainer"]
    num_ranks, device = trainer["devices"] * trainer["num_nodes"], device_type(trainer["accelerator"])
    precision, recompute, strategy = (word_of(config[group]) for group in ("precision", "recompute", "strategy"))
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
    if trainer["detect_anomaly"]:
        yield "trainer.detect_anomaly=true looks at every operation", "trainer.detect_anomaly=false"
