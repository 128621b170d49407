"""What a composed config means for planning: which devices, in which format, how spread out; loads nothing heavy."""

from dataclasses import dataclass, replace
from typing import Final

from lmtrain.accounting.cluster import Cluster, Peak
from lmtrain.accounting.machine.number_formats import PrecisionBytes, precision_bytes
from lmtrain.accounting.model.optimizer_state import FP32_BYTES, OptimizerState, optimizer_state
from lmtrain.accounting.training_plan.spread import ModelSpread
from lmtrain.composition.nodes.facts import spread_of
from lmtrain.composition.nodes.node import Node
from lmtrain.composition.rules.float8_head import require_float8_head
from lmtrain.composition.rules.recordable import require_recordable
from lmtrain.composition.run_config import RunConfig
from lmtrain.errors import ConfigurationError
from lmtrain.precision.cpu_features import bf16_flags

SDPA: Final = Node("attention", {"_target_": "lmtrain.models.attention.sdpa.SDPA"})
UNCOMPILED: Final = Node("attention", {"_target_": "lmtrain.models.attention.auto.Uncompiled"})
FUSED_ON_GPUS: Final = ("auto", "sdpa", "flash", "flex")


@dataclass(frozen=True, kw_only=True)
class PlannedSetting:
    """The choices of a config that memory and speed depend on; words are those of the command line."""

    cluster: Cluster
    num_ranks: int
    precision: str
    optimizer: str
    state: OptimizerState
    spread: ModelSpread
    recompute: str
    is_compiled: bool
    residual: str | None = None

    @property
    def is_gpu(self) -> bool:
        """Tell whether the run is planned for a GPU of the hardware table, rather than for this machine."""
        return self.cluster.device is not None

    @property
    def casts_parameters(self) -> bool:
        """Tell whether the model computes with weights in the format of its products, so that no copy is kept."""
        return self.spread.casts_parameters or self.precision == "bf16_true"

    @property
    def cuts_blocks(self) -> bool:
        """Tell whether the compiler decides what a block keeps: blocks that recompute all keep the same either way."""
        return self.is_compiled and self.recompute in {"none", "selective"}

    @property
    def bytes_of(self) -> PrecisionBytes:
        """Return the bytes of a value by role; sharding casts what it gathers and keeps no copy."""
        held = precision_bytes(self.precision)
        return replace(held, compute_copy=0) if self.casts_parameters else held

    @property
    def compute_dtype(self) -> str:
        """Return torch's word for the format of matrix products."""
        return {"bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"}.get(self.bytes_of.matmul, "float32")

    def peak(self) -> Peak | None:
        """Return the dense peak of one device for the run's products."""
        return self.cluster.peak(self.bytes_of.matmul)


def planned_setting(config: RunConfig) -> PlannedSetting:
    """Read the choices of a composed config.

    Raises:
        ConfigurationError: One that cannot be, or that planning does not know.
    """
    require_float8_head(config)
    require_recordable(config, num_ranks=config.num_ranks, device="cuda")  # a plan may be of another machine
    setting = PlannedSetting(
        cluster=config.cluster,
        num_ranks=config.num_ranks,
        precision=config.precision.word,
        optimizer=config.optimizer.word,
        state=_state(config),
        spread=spread_of(config.strategy.values, allowed=config.allowed),
        recompute=config.recompute.word,
        is_compiled=config.compile.word != "none",
        residual=_residual(config.precision),
    )
    return _without_auto(setting)


def _state(config: RunConfig) -> OptimizerState:
    """Return what is kept for each parameter: by the optimizer, and by an average of the weights."""
    state = optimizer_state(config.optimizer.word, config.optimizer.values)
    keeps_average = "decay" in config.weight_average
    return replace(state, average_bytes=FP32_BYTES) if keeps_average else state


def _residual(precision: Node) -> str | None:
    """Return the format that the residual stream is rounded to, None where nothing rounds it."""
    residual = precision.get("residual")
    if residual not in (None, "bf16"):
        raise ConfigurationError(f"precision.residual={residual} is none of bf16, or null.")
    return residual


def attention_of(config: RunConfig, setting: PlannedSetting) -> Node:
    """Return the attention to measure with: every fused kernel of a GPU keeps what torch's own one keeps."""
    kernel = config.attention.target.split(".")[-2]
    if setting.is_gpu:
        return SDPA if kernel in FUSED_ON_GPUS else config.attention
    return UNCOMPILED if kernel == "auto" and not setting.is_compiled else config.attention


def _without_auto(setting: PlannedSetting) -> PlannedSetting:
    """Choose as the options called `auto` would on those devices."""
    if setting.precision == "auto":
        setting = replace(setting, precision="bf16_mixed" if setting.is_gpu or bf16_flags() else "fp32")
    return setting
