"""A model's pass over one text's next token, compiled into one function.

Attention and shifts by a token stay the pass's own `Step`: two operators of torch call it. H heads, Hkv key and value
heads, K head width, D width, V vocabulary, I inner and O outer values of a product.
"""

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from typing_extensions import override

from lmtrain.inference.cache_step import CacheStep, Step
from lmtrain.inference.weight_layout import lay_out_for_dot_products
from lmtrain.models.base import LanguageModel

EVERY_TOKEN: Final = -1  # a window of an operator, whose numbers are never None
# Each norm's result stored once. Else it is computed again for every row of the matrix behind it.
STORED_RESULTS: Final = {"realize_opcount_threshold": 1, "realize_reads_threshold": 1}


@final
class CompiledPass:
    """A pass of one token of one text on a CPU: 1.4 times as fast as from a record, after 10 to 30 s of compiling.

    One function of C++ with a dot product for each row of a matrix, which reads weights at a copy's speed where MKL's
    product of one row reaches two thirds (AMD EPYC, torch 2.13).
    """

    def __init__(self, model: LanguageModel) -> None:
        """Trace a model without operations that depend on the values of tensors; its products then want rows."""
        lay_out_for_dot_products(model)
        self._tokens = torch.zeros(1, 1, dtype=torch.int64)
        self._positions = torch.zeros(1, 1, dtype=torch.int64)

        def one_token(tokens: Int[Tensor, "1 1"], positions: Int[Tensor, "1 1"]) -> Float[Tensor, "1 1 V"]:
            return model.logits(model.hidden_states(tokens, _StepByOperators(positions)))

        with torch.no_grad():
            graph = make_fx(one_token, decomposition_table=_DOT_PRODUCTS)(self._tokens, self._positions)
        # It looks for CUDA's headers, also on a CPU, and tells everybody that it found none.
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
        # The same two tensors are given each time, so there is nothing to guard.
        options: dict[str, Any] = {
            "cpp_wrapper": True,
            "guard_filter_fn": torch.compiler.skip_all_guards_unsafe,
            **STORED_RESULTS,
        }
        self._run: Callable[..., Float[Tensor, "1 1 V"]] = torch.compile(
            graph, fullgraph=True, dynamic=False, options=options
        )

    def __call__(self, tokens: Int[Tensor, "1 1"], step: Step) -> Float[Tensor, "1 1 V"]:
        """Return the logits after a token: int64 [1, 1] -> [1, 1, V]; the first call compiles."""
        self._tokens.copy_(tokens)
        self._positions.copy_(step.positions)
        asked = _STEP.set(step)
        try:
            return self._run(self._tokens, self._positions)
        finally:
            _STEP.reset(asked)


_STEP: ContextVar[Step | None] = ContextVar("step of the compiled pass under way", default=None)


@final
class _StepByOperators(CacheStep):
    """Stands for the step of each pass while a graph is made; its places are numbers in the graph."""

    def __init__(self, positions: Int[Tensor, "1 1"]) -> None:
        self.positions, self.num_positions = positions, 1
        self._num_attended, self._num_shifted = 0, 0

    @override
    def previous(self, x: Shaped[Tensor, "1 1 *D"]) -> Shaped[Tensor, "1 1 *D"]:
        self._num_shifted += 1
        return torch.ops.lmtrain.previous(x, self._num_shifted - 1)

    @override
    def attend(
        self,
        q: Float[Tensor, "1 H 1 K"],
        k: Float[Tensor, "1 Hkv 1 K"],
        v: Float[Tensor, "1 Hkv 1 K"],
        *,
        window_tokens: int | None,
    ) -> Float[Tensor, "1 H 1 K"]:
        self._num_attended += 1
        window = EVERY_TOKEN if window_tokens is None else window_tokens
        return torch.ops.lmtrain.attend(q, k, v, window, self._num_attended - 1)


def _attend(q: Tensor, k: Tensor, v: Tensor, window: int, place: int) -> Tensor:
    if (step := _STEP.get()) is None:  # a graph is being made
        return _like(q)
    window_tokens = None if window == EVERY_TOKEN else window
    return step.attend_at(place, q, k, v, window_tokens=window_tokens).contiguous()


def _previous(x: Tensor, place: int) -> Tensor:
    return _like(x) if (step := _STEP.get()) is None else step.previous_at(place, x).contiguous()


def _like(x: Tensor, *_: object) -> Tensor:
    return x.new_zeros(x.shape)


_OPERATORS: Final = torch.library.Library("lmtrain", "DEF")
_OPERATORS.define("attend(Tensor q, Tensor k, Tensor v, int window, int place) -> Tensor")
_OPERATORS.define("previous(Tensor x, int place) -> Tensor")
for _name, _operation in (("attend", _attend), ("previous", _previous)):
    _OPERATORS.impl(_name, _operation, "CPU")
    _OPERATORS.impl(_name, _like, "Meta")


def _dot_products(x: Float[Tensor, "1 I"], weight: Float[Tensor, "I O"]) -> Any:
    """Multiply one row by a matrix as dot products: [1, I] x [I, O] -> [1, O]."""
    return (x * weight.t()).sum(1).unsqueeze(0) if len(x) == 1 else NotImplemented


def _dot_products_and_bias(bias: Float[Tensor, " O"], x: Float[Tensor, "1 I"], weight: Float[Tensor, "I O"]) -> Any:
    return _dot_products(x, weight) + bias if len(x) == 1 else NotImplemented


_DOT_PRODUCTS: Final[Mapping[Any, Callable[..., Any]]] = {
    torch.ops.aten.mm.default: _dot_products,
    torch.ops.aten.addmm.default: _dot_products_and_bias,
}
