"""What a composed config means for planning: which devices, in which format, how spread out; loads nothing heavy."""

import math
from dataclasses import dataclass, replace
from typing import Any, Final

from lmtrain.accounting.cluster import Cluster, Peak
from lmtrain.accounting.machine.number_formats import PrecisionBytes, precision_bytes
from lmtrain.accounting.model.memory import COMPILED_HEAP_SHARE, HEAP_SHARE, HostMemory
from lmtrain.accounting.model.optimizer_state import FP32_BYTES, OptimizerState, optimizer_state
from lmtrain.accounting.quantities import parse_whole
from lmtrain.accounting.training_plan.spread import ModelSpread
from lmtrain.composition.nodes.check import check_node
from lmtrain.composition.nodes.facts import spread_of
from lmtrain.composition.nodes.instantiate import instantiate
from lmtrain.composition.nodes.targets import word_of
from lmtrain.composition.planning.measured_here import kind_here, measurements_of
from lmtrain.composition.rules.float8_head import require_float8_head
from lmtrain.composition.rules.recordable import require_recordable
from lmtrain.composition.rules.rounding import require_rounding
from lmtrain.errors import ConfigurationError
from lmtrain.precision.cpu_features import bf16_flags

SDPA: Final = {"_target_": "lmtrain.models.attention.sdpa.SDPA"}
UNCOMPILED: Final = {"_target_": "lmtrain.models.attention.auto.Uncompiled"}
FUSED_ON_GPUS: Final = ("auto", "sdpa", "flash", "flex")


@dataclass(frozen=True, kw_only=True)
class PlannedSetting:
    """The choices of a config that memory and speed depend on; words are those of the command line.

    `host` is what a run on this machine's CPU takes beside its tensors, None for one on a GPU.
    """

    cluster: Cluster
    num_ranks: int
    precision: str
    optimizer: str
    state: OptimizerState
    spread: ModelSpread
    recompute: str
    is_compiled: bool
    residual: str | None = None
    host: HostMemory | None = None

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


def planned_setting(config: dict[str, Any], *, allowed: list[str]) -> PlannedSetting:
    """Read the choices of a composed config.

    Raises:
        ConfigurationError: One that cannot be, or that planning does not know.
    """
    require_float8_head(config)
    require_rounding(config)
    cluster: Cluster = instantiate(check_node(config["cluster"], key="cluster", allowed=allowed), key="cluster")
    trainer = config["trainer"]
    num_ranks = math.prod(parse_whole(trainer[name], f"trainer.{name}") for name in ("devices", "num_nodes"))
    require_recordable(config, num_ranks=num_ranks, device="cuda")  # a plan may be of another machine
    spread = spread_of(config["strategy"], allowed=allowed)
    _require_ranks(spread, num_ranks, strategy=word_of(config["strategy"]))
    setting = PlannedSetting(
        cluster=cluster,
        num_ranks=num_ranks,
        precision=word_of(config["precision"]),
        optimizer=word_of(config["optimizer"]),
        state=_state(config),
        spread=spread,
        recompute=word_of(config["recompute"]),
        is_compiled=word_of(config["compile"]) != "none",
        residual=_residual(config["precision"]),
        host=_host(config, cluster),
    )
    return _without_auto(setting)


def _require_ranks(spread: ModelSpread, num_ranks: int, *, strategy: str) -> None:
    if spread.most_ranks is not None and num_ranks > spread.most_ranks:
        raise ConfigurationError(
            f"strategy={strategy} trains on {spread.most_ranks} rank, not {num_ranks} (trainer.devices x "
            "trainer.num_nodes); use strategy=ddp or strategy=fsdp."
        )


def _host(config: dict[str, Any], cluster: Cluster) -> HostMemory | None:
    if cluster.device is not None or kind_here(config, measurements_of(config)) != "cpu":
        return None
    saves = config["callbacks"].get("checkpoint") or {}
    is_compiled = word_of(config["compile"]) != "none"
    return HostMemory(
        heap_share=COMPILED_HEAP_SHARE if is_compiled else HEAP_SHARE,
        snapshot_from_bytes=saves.get("background_from_bytes"),
    )


def _state(config: dict[str, Any]) -> OptimizerState:
    """Return what is kept for each parameter: by the optimizer, and by an average of the weights."""
    state = optimizer_state(word_of(config["optimizer"]), config["optimizer"])
    keeps_average = "decay" in config.get("weight_average", {})
    return replace(state, average_bytes=FP32_BYTES) if keeps_average else state


def _residual(precision: dict[str, Any]) -> str | None:
    """Return the format that the residual stream is rounded to, None where nothing rounds it."""
    residual = precision.get("residual")
    if residual not in (None, "bf16"):
        raise ConfigurationError(f"precision.residual={residual} is none of bf16, or null.")
    return residual


def attention_of(config: dict[str, Any], setting: PlannedSetting) -> dict[str, Any]:
    """Return the attention to measure with: every fused kernel of a GPU keeps what torch's own one keeps."""
    kernel = str(config["attention"]["_target_"]).split(".")[-2]
    if setting.is_gpu:
        return SDPA if kernel in FUSED_ON_GPUS else config["attention"]
    return UNCOMPILED if kernel == "auto" and not setting.is_compiled else config["attention"]


def context_tokens_of(config: dict[str, Any]) -> int:
    """Return the tokens of one sequence, as a person may write them.

    Raises:
        ConfigurationError: They are no whole number of at least 1.
    """
    return parse_whole(config["batch"]["context_tokens"], "batch.context_tokens")


def _without_auto(setting: PlannedSetting) -> PlannedSetting:
    """Choose as the options called `auto` would on those devices."""
    if setting.precision == "auto":
        setting = replace(setting, precision="bf16_mixed" if setting.is_gpu or bf16_flags() else "fp32")
    return setting
