"""Matrix products of the blocks in 8-bit floating point, each operand scaled to the format's range as it is cast.

torchao's linear layer: e4m3 forward, e5m2 for gradients, one scale a tensor or one a row (arXiv 2209.05433). It was
chosen for others' measurements with it on H100 (8B: 1.25 times bf16 tensorwise, 1.10 rowwise); next to a linear of our
own it is not measured. Evaluation runs in bf16. The head's products belong to the loss (head_rounding).
"""

import importlib
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from typing import Any, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from lmtrain.accounting.machine.number_formats import PrecisionBytes
from lmtrain.accounting.options.precision import PrecisionFacts, fp8_width
from lmtrain.accounting.options.ranges import require_count
from lmtrain.errors import ConfigurationError
from lmtrain.missing_package import require_package
from lmtrain.models.base import LanguageModel
from lmtrain.models.head import OutputHead, Rounding
from lmtrain.models.mixture_of_experts import MixtureOfExperts
from lmtrain.precision.cast_weights import Members, specialize
from lmtrain.precision.policy import Precision, Residual, require_products

# e5m2 then holds 2^-29 to 7: 1 with a z-loss's addition, and a share of 1 / V far above the least.
GRADIENT_SCALE = 2.0**13


@final
@dataclass(frozen=True, kw_only=True)
class Float8Rounding(Rounding):
    """The operands' formats; `emulate` multiplies them in fp32, for tests on any device."""

    emulate: bool = False
    gradient_scale: float = GRADIENT_SCALE
    gradient_dtype: torch.dtype | None = torch.float8_e5m2
    _tensors: Any = field(init=False, repr=False)  # torchao's modules, imported before a compiler traces their use
    _scaling: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, module in (("_tensors", "float8_training_tensor"), ("_scaling", "float8_scaling_utils")):
            object.__setattr__(self, name, importlib.import_module(f"torchao.float8.{module}"))

    @override
    def weight(self, weight: Float[Tensor, "V D"], /) -> tuple[Float[Tensor, "D V"], Float[Tensor, "V D"]]:
        """Return it in both orders of memory, as 8-bit products want their second factor by columns."""
        rounded = self._rounded(weight, "WEIGHT")
        return rounded.t(), rounded.t().contiguous().t()

    @override
    def states(self, states: Float[Tensor, "C D"], /) -> Float[Tensor, "C D"]:
        """Return them by the scale of their largest."""
        return self._rounded(states, "INPUT")

    @override
    def gradient(self, scaled: Float[Tensor, "C V"], dtype: torch.dtype, /) -> Float[Tensor, "C V"]:
        """Return the gradient, scaled and cast already."""
        return self._tensors.Float8TrainingTensor(
            scaled,
            scaled.new_full((), self.gradient_scale, dtype=torch.float32),  # filled on the device, without a wait
            dtype,
            self._products(),
            self._tensors.GemmInputRole.GRAD_OUTPUT,
        )

    def _rounded(self, values: Tensor, role: str) -> Tensor:
        return self._scaling.hp_tensor_to_float8_dynamic(
            values, torch.float8_e4m3fn, self._products(), gemm_input_role=self._tensors.GemmInputRole[role]
        )

    def _products(self) -> Any:
        """Return torchao's settings of a layer's products; the tokens of a last chunk are made a multiple of 16."""
        product = partial(self._tensors.ScaledMMConfig, emulate=self.emulate)
        return self._tensors.LinearMMConfig(
            output=product(use_fast_accum=True), grad_input=product(), grad_weight=product(pad_inner_dim=True)
        )


def round_head(model: LanguageModel) -> LanguageModel:
    """Give the head, in place, a rounding for its loss."""
    make_head, rounding = model.output_head, Float8Rounding()

    def output_head() -> OutputHead:
        return replace(make_head(), rounding=rounding)

    model.output_head = output_head
    return model


Recipe = Literal["tensorwise", "rowwise"]
Gather = Literal["bf16", "fp8"]
MULTIPLE = 16  # numbers: the unit of both dimensions in the hardware's 8-bit product


@dataclass(frozen=True)
class ChosenLayers:
    """The linear layers in fp8 by name, and the others with a reason each."""

    converted: list[str] = field(default_factory=list[str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])

    def lines(self) -> list[str]:
        """Return the layers in fp8, and those of each reason against it, as lines for people."""
        reasons = {
            reason: [name for name, why in self.skipped.items() if why == reason] for reason in self.skipped.values()
        }
        named = {"fp8": self.converted, **{f"not fp8, {reason}": names for reason, names in reasons.items()}}
        return [f"{what}: {', '.join(_alike(names))}" for what, names in named.items() if names]


def fp8(
    *,
    recipe: Recipe = "tensorwise",
    min_width: int = 512,
    skip: list[str] | None = None,
    head: bool = False,
    gather: Gather = "bf16",
    residual: Residual | None = None,
    device_type: str,
) -> Precision:
    """Compute the blocks' large products in fp8, with bf16 copies of fp32 master weights.

    Layers with a side below `min_width`, or with a name in a pattern of `skip`, stay in bf16. `head` puts those of a
    chunked loss in fp8 too, scaled tensorwise under either recipe. `gather` "fp8" lets a strategy that shards gather
    the weights in fp8 with the same results, tensorwise alone. `residual` as in bf16_mixed.
    """
    require_count("precision.min_width", min_width)
    facts = fp8_facts(recipe=recipe, gather=gather, min_width=min_width, residual=residual)
    require_products(facts, device_type)
    require_package("precision=fp8", "torchao", extra="fp8", instead="precision=bf16_mixed")
    choose = partial(choose_layers, min_width=min_width, skip=tuple(skip or ()), head=head)

    def convert(model: LanguageModel) -> LanguageModel:
        model = convert_layers(model, choose(model), recipe=recipe, gather=gather)
        return round_head(model) if head else model

    return Precision(
        facts=facts,
        convert=convert,
        explain=lambda model: [f"fp8 {recipe} by torchao", *choose(model).lines(), *["fp8: head, by the loss"] * head],
    )


def fp8_facts(
    *, recipe: Recipe = "tensorwise", gather: Gather = "bf16", min_width: int = 512, residual: Residual | None = None
) -> PrecisionFacts:
    """Keep a copy of the weights in 2 bytes, rounded to 1 by products; scales a row came with Hopper."""
    held = PrecisionBytes(compute_copy=2, activations=2, matmul="fp8")
    by_row = recipe == "rowwise"
    return PrecisionFacts(
        name="fp8",
        bytes_of=held,
        compute_dtype="bfloat16",
        residual=residual,
        fp8_width=fp8_width(gather, recipe=recipe, min_width=min_width),
        asked=f"precision=fp8 with precision.recipe={recipe}" if by_row else "",
        gpu_since=(9, 0) if by_row else (8, 9),
        instead="precision.recipe=tensorwise" if by_row else "precision=bf16_mixed",
    )


def choose_layers(
    model: LanguageModel, *, min_width: int, skip: tuple[str, ...] = (), head: bool = False
) -> ChosenLayers:
    """Sort every linear layer of a model, also on the meta device; `head` leaves the head to its loss."""
    chosen = ChosenLayers()
    head_weight = model.output_head().weight if head else None
    if head_weight is not None and (reason := _sides_against(tuple(head_weight.T.shape), min_width)):
        vocab_size = head_weight.shape[0]
        size = f" or model.vocab_size={-(-vocab_size // MULTIPLE) * MULTIPLE}" if vocab_size % MULTIPLE else ""
        raise ConfigurationError(f"precision.head=true: the head of {reason}. Did you mean precision.head=false{size}?")
    blocks = {id(module) for module in model.blocks.modules()}
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    for pattern in skip:
        if not any(fnmatch(name, pattern) for name in names):
            raise ConfigurationError(f"precision.skip={pattern} matches no linear layer; there are {', '.join(names)}.")
    for name, module in model.named_modules():
        if isinstance(module, MixtureOfExperts):
            chosen.skipped[f"{name}.gate_up"] = chosen.skipped[f"{name}.down"] = "a product per expert"
        if not isinstance(module, nn.Linear):
            continue
        if module.weight is head_weight:
            _require_not_skipped(name, skip)
            continue
        reason = _reason_against(name, module, min_width, skip) if id(module) in blocks else "not in a block"
        if reason:
            chosen.skipped[name] = reason
        else:
            chosen.converted.append(name)
    if not chosen.converted:
        raise ConfigurationError(
            f"precision=fp8 finds no layer to convert: {'; '.join(chosen.lines())}. Nearest valid: "
            "precision=bf16_mixed, or a smaller precision.min_width."
        )
    return chosen


def convert_layers(
    model: LanguageModel, chosen: ChosenLayers, *, recipe: Recipe, gather: Gather = "bf16", emulate: bool = False
) -> LanguageModel:
    """Replace the chosen layers in place, with the same parameters under the same names.

    `gather` "fp8" is for a strategy that shards. `emulate` multiplies the rounded operands in their former format: for
    tests, on any device.
    """
    float8: Any = importlib.import_module("torchao.float8")
    config = float8.Float8LinearConfig.from_recipe_name(recipe)
    object.__setattr__(config, "emulate", emulate)
    names = set(chosen.converted)
    float8.convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name in names)
    for name in chosen.converted:
        specialize(model.get_submodule(name), _fp8_layer, gather)
    return model


def _fp8_layer(kind: type[nn.Module], gather: Gather) -> Members:
    """Return bf16 in evaluation, products with parts, and the weight that FSDP2 gathered in fp8, with its scale."""
    tensors: Any = importlib.import_module("torchao.float8.float8_training_tensor")
    own: Any = importlib.import_module("torchao.float8.float8_linear").matmul_with_hp_or_float8_args

    def product(self: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not torch.is_grad_enabled():
            return F.linear(x, weight, bias)
        made: Tensor = own.apply(x.to(weight.dtype), weight.t(), self.linear_mm_config, self.config)
        return made if bias is None else made + bias.to(made.dtype)

    def forward(self: Any, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return F.linear(x, self.weight, self.bias)
        weight_dtype: torch.dtype = self.weight.dtype
        return kind.forward(self, x.to(weight_dtype))

    def float8_weight(self: Any, data: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        return tensors.Float8TrainingTensor(data, scale, dtype, self.linear_mm_config, tensors.GemmInputRole.WEIGHT)

    members = {"forward": forward, "product": product, "multiple": MULTIPLE}
    return members | ({"float8_weight": float8_weight} if gather == "fp8" else {})


def _reason_against(name: str, layer: nn.Linear, min_width: int, skip: tuple[str, ...]) -> str | None:
    if pattern := next((pattern for pattern in skip if fnmatch(name, pattern)), None):
        return f"precision.skip={pattern}"
    return _sides_against((layer.in_features, layer.out_features), min_width)


def _require_not_skipped(head: str, skip: tuple[str, ...]) -> None:
    for pattern in skip:
        if fnmatch(head, pattern):
            raise ConfigurationError(
                f"precision.skip={pattern} keeps {head} in bf16, and precision.head=true does not. Did you mean "
                "precision.head=false?"
            )


def _sides_against(sides: tuple[int, ...], min_width: int) -> str | None:
    if any(side % MULTIPLE for side in sides):
        return f"{sides[0]} x {sides[1]} is not a multiple of {MULTIPLE} both ways"
    if min(sides) < min_width:
        return f"{sides[0]} x {sides[1]} has a side below precision.min_width={min_width}"
    return None


def _alike(names: list[str]) -> list[str]:
    """Return names without their numbers, each once."""
    return [*dict.fromkeys(".".join("*" if word.isdigit() else word for word in name.split(".")) for name in names)]
