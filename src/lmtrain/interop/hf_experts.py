"""Experts of transformers' classes: the keys of their routers, and the names and layouts of their tensors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from torch import Tensor

from lmtrain.interop.foreign_config import ForeignConfig
from lmtrain.interop.model_settings import node_of
from lmtrain.models.mixture_of_experts import Experts

Settings = Mapping[str, Any]
Layout = Literal["same", "transposed", "pairs", "transposed_pairs"]
BIAS_AS_IT_IS: Final = 0.0  # no key of theirs moves it

MIXED: Final[dict[tuple[bool, bool], Layout]] = {  # by whether it is down, and a bias
    (False, False): "transposed_pairs",
    (False, True): "pairs",
    (True, False): "transposed",
    (True, True): "same",
}


@dataclass(frozen=True)
class Part:
    """One tensor of theirs and its place in ours.

    `layout`: theirs is [inputs, outputs] ("transposed"), as in GPT-2; has the two halves of our rows side by side
    ("pairs"), as in gpt-oss; or both.
    """

    name: str
    region: tuple[slice | int, ...] = ()
    layout: Layout = "same"

    def of(self, ours: Tensor) -> Tensor:
        """Return this part of our tensor, a view, as theirs; pairs as a dim of their own, the last one."""
        view = ours[self.region]
        if self.layout == "transposed":
            return view.mT
        if self.layout == "same":
            return view
        pairs = view.unflatten(1, (2, -1)).transpose(1, 2)  # [E, F, 2, ...]
        return pairs.permute(0, 3, 1, 2) if self.layout == "transposed_pairs" else pairs


@dataclass(frozen=True, kw_only=True)
class ExpertFamily:
    """The experts of a class: settings by key, settings that no key changes, and the places of tensors.

    `dense`: layers without experts by a step and a list ("step"), or the first ones ("first"). `shared_count` counts
    shared experts as wide as one of the others, `shared_key` is their width. `router`, `experts` and `shared` name
    modules within a layer, `matrices` gate, up and down within an expert. `stacked` are gate_up and down of all experts
    in one tensor each, as they are or, with `mixed`, transposed and with gate and up next to each other.
    `has_choice_key`: a key turns groups on.
    """

    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    always: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dense: Literal["step", "first"] | None = None
    shared_key: str | None = None
    shared_count: str | None = None
    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    matrices: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    stacked: tuple[str, str] | None = None
    mixed: bool = False
    shared: str = "mlp.shared_experts"
    has_choice_key: bool = False


GREEDY: Final = "greedy"
COUNT: Final = "num_experts"


def read_experts(config: ForeignConfig, family: ExpertFamily, num_layers: int) -> dict[str, Any]:
    """Return the settings of experts as a config node."""
    settings: dict[str, Any] = {}
    for ours, theirs in family.keys.items():
        if (value := config.get(theirs, default=False if ours == "normalize_weights" else None)) is not None:
            settings[ours] = value
    settings[COUNT] = config.count("num_local_experts", family.keys[COUNT])  # either, in transformers 5.23
    settings |= family.always
    if family.has_choice_key and config.get("topk_method") == GREEDY:
        settings |= {"num_groups": 1, "num_groups_per_token": 1}
    if family.shared_key is not None:
        settings["shared_width"] = config.count(family.shared_key)
    elif family.shared_count is not None:
        settings["shared_width"] = config.count(family.shared_count) * config.count("moe_intermediate_size")
    if family.dense is not None:
        dense_width, settings["dense_layers"] = (
            config.count("intermediate_size"),
            _dense_layers(config, family, num_layers),
        )
        settings["dense_width"] = dense_width if settings["dense_layers"] else None
    return node_of(Experts, **settings)


def _dense_layers(config: ForeignConfig, family: ExpertFamily, num_layers: int) -> list[int]:
    if family.dense == "first":
        return list(range(min(num_layers, config.get("first_k_dense_replace", default=0))))
    step, listed = config.get("decoder_sparse_step", default=1), config.get("mlp_only_layers", default=[])
    return [layer for layer in range(num_layers) if layer in listed or (layer + 1) % step]


def write_experts(experts: Settings, family: ExpertFamily, width: int) -> dict[str, Any]:
    """Return the keys of experts of a width."""
    config = {theirs: experts[ours] for ours, theirs in family.keys.items()} | {"output_router_logits": False}
    if family.has_choice_key:
        config["topk_method"] = GREEDY if experts["num_groups"] == 1 else "group_limited_greedy"
    layers = list(experts["dense_layers"])
    if family.shared_key is not None:
        config[family.shared_key] = experts["shared_width"] or width
    elif family.shared_count is not None:
        config[family.shared_count] = (experts["shared_width"] or width) // width
    if family.dense is not None:
        config["intermediate_size"] = experts["dense_width"] or width
    if family.dense == "step":
        config |= {"decoder_sparse_step": 1, "mlp_only_layers": layers}
    elif family.dense == "first":
        config["first_k_dense_replace"] = len(layers)
    return config


def same_function(experts: Settings) -> dict[str, Any]:
    """Return the settings behind the experts' function, each written in one way."""
    has_groups, has_dense = experts["num_groups"] > 1, bool(experts["dense_layers"])
    return {
        **experts,
        "bias_step": None if experts["bias_step"] is None else BIAS_AS_IT_IS,
        "num_groups_per_token": experts["num_groups_per_token"] if has_groups else 1,
        "dense_width": experts["dense_width"] if has_dense else None,
        "shared_gate": bool(experts["shared_gate"]),
    }


def expert_parts(name: str, tensor: Tensor, family: ExpertFamily) -> Iterator[Part]:
    """Yield where a tensor of a mixture of experts lies in a layer of theirs."""
    module, _, kind = name.rpartition(".")
    names = {
        "router": family.router,
        "choice_bias": f"{family.router}.e_score_correction_bias",
        "shared_gate": f"{family.shared}_gate",
        "shared.down": f"{family.shared}.down_proj",
    }
    if (found := names.get(module or name)) is not None:
        yield Part(f"{found}.{kind}" if module else found)
    elif module == "shared.gate_up":
        half = tensor.shape[0] // 2
        yield Part(f"{family.shared}.gate_proj.{kind}", (slice(0, half),))
        yield Part(f"{family.shared}.up_proj.{kind}", (slice(half, None),))
    elif family.stacked is None:
        yield from _one_by_one(name, tensor, family)
    else:
        is_down, is_bias = name.startswith("down"), name.endswith("_bias")
        stack = family.stacked[is_down] + ("_bias" if is_bias else "")
        yield Part(stack, layout=MIXED[is_down, is_bias] if family.mixed else "same")


def _one_by_one(name: str, stack: Tensor, family: ExpertFamily) -> Iterator[Part]:
    gate, up, down = family.matrices
    half = stack.shape[1] // 2
    for number in range(stack.shape[0]):
        expert = f"{family.experts}.{number}"
        if name == "down":
            yield Part(f"{expert}.{down}.weight", (number,))
        else:
            yield Part(f"{expert}.{gate}.weight", (number, slice(0, half)))
            yield Part(f"{expert}.{up}.weight", (number, slice(half, None)))
