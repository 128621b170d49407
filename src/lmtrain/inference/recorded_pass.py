"""A model's forward pass as the list of its operations on fixed memory, done again without the model's Python code.

One token of each text makes small operations, and Python's way to each takes longer than most of them. Attention and
shifts by a token are left to the pass's own `Step`. N tokens of several texts, L wanted ones, D width, V vocabulary, H
heads, Hkv key and value heads, K head width.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch._C import _nn as nn_functions  # pyright: ignore[reportAttributeAccessIssue]
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from typing_extensions import override

from lmtrain.inference.cache_step import CacheStep, Step
from lmtrain.inference.compiled_pass import CompiledPass
from lmtrain.inference.wanted_rows import only_rows
from lmtrain.models.base import LanguageModel

Operation = Callable[..., Any]
# 1 token took 0.65 of the time, 4 and 16 took 0.76, 64 took as long: 4 layers of 128, one thread (torch 2.13).
MAX_TOKENS: Final = 32
MAX_BYTES: Final = 64 * 2**20  # of the results kept, by all records together

_ADD, _MEAN = torch.ops.aten.add_.Tensor, torch.ops.aten.mean.dim


@final
class RecordedPasses:
    """Forward passes of a model on a CPU, by number of tokens from a record where that is the quicker way.

    The second pass in a row with as many single tokens is recorded; that of one token is compiled then, where that was
    asked for. Of one thread.
    """

    def __init__(self, model: LanguageModel, *, compiles: bool = False) -> None:
        self._model, self._compiles = model, compiles
        self._compiled: CompiledPass | None = None
        is_on_cpu = all(weight.device.type == "cpu" for weight in model.parameters())
        self._most_tokens = MAX_TOKENS if is_on_cpu else 0
        self._num_before = 0
        self._records: OrderedDict[int, _Record] = OrderedDict()

    @property
    def recorded_numbers(self) -> list[int]:
        """Return the numbers of tokens with a record, the latest in use last."""
        return list(self._records)

    @property
    def is_compiled(self) -> bool:
        """Tell whether the pass of one token is compiled."""
        return self._compiled is not None

    def stop(self) -> None:
        """Leave every pass to the model from now on."""
        self._records.clear()
        self._most_tokens = 0

    @property
    def num_bytes(self) -> int:
        """Return how much memory the records hold."""
        return sum(record.num_bytes for record in self._records.values())

    def __call__(self, tokens: Int[Tensor, "1 N"], step: Step, wanted: Sequence[int]) -> Float[Tensor, "L V"]:
        """Return the logits after the wanted of these tokens: int64 [1, N] -> [L, V], valid until the next call."""
        num_tokens = tokens.shape[1]
        if step.is_single:
            logits = self._after_each(tokens, step)[0]
            return logits if len(wanted) == num_tokens else logits[list(wanted)]
        self._num_before = 0
        with only_rows(self._model.last_feed_forward, wanted, num_rows=num_tokens):
            hidden = self._model.hidden_states(tokens, step)[0]  # [N, D]
        return self._model.logits(hidden[list(wanted)].unsqueeze(0))[0]

    def _after_each(self, tokens: Int[Tensor, "1 N"], step: Step) -> Float[Tensor, "1 N V"]:
        """Read one token of each text."""
        num_tokens, num_before = tokens.shape[1], self._num_before
        is_small = num_tokens <= self._most_tokens
        self._num_before = num_tokens if is_small else 0
        if num_tokens == 1 and self._compiled is not None:
            return self._compiled(tokens, step)
        if is_small and num_tokens in self._records:
            self._records.move_to_end(num_tokens)
            return self._records[num_tokens](tokens, step)
        if not is_small or num_tokens != num_before:
            return self._model.logits(self._model.hidden_states(tokens, step))
        return self._recorded(tokens, step)

    def _recorded(self, tokens: Int[Tensor, "1 N"], step: Step) -> Float[Tensor, "1 N V"]:
        record = _Record(self._model, tokens, step)
        if not record.is_whole:
            self.stop()
        elif tokens.shape[1] == 1 and self._compiles:
            self._compiled = CompiledPass(self._model)
        elif record.num_bytes > MAX_BYTES:
            self._most_tokens = tokens.shape[1] - 1
        else:
            self._records[tokens.shape[1]] = record
            while self.num_bytes > MAX_BYTES:
                self._records.popitem(last=False)
        return record.logits


@final
class _Record:
    """A pass over N single tokens, done by the model once, and from its operations afterwards.

    `is_whole` is False where operations depend on the values of tensors, and not on shapes alone.
    """

    def __init__(self, model: LanguageModel, tokens: Int[Tensor, "1 N"], step: CacheStep) -> None:
        """Read the tokens as the model does; `logits` [1, N, V] are its answer."""
        # Outside inference_mode layers come as products, norms as their parts.
        with torch.inference_mode(mode=False), torch.no_grad():
            self._tokens, self._steps = tokens.clone(), _StepOfEachPass(step)
            recorder = self._steps.recorder
            with recorder:
                self.logits: Float[Tensor, "1 N V"] = model.logits(model.hidden_states(self._tokens, self._steps))
        self._calls, self.num_bytes, self.is_whole = recorder.calls, recorder.num_bytes, recorder.is_whole

    def __call__(self, tokens: Int[Tensor, "1 N"], step: CacheStep) -> Float[Tensor, "1 N V"]:
        """Read the next tokens: int64 [1, N] -> [1, N, V], valid until the next call."""
        self._tokens.copy_(tokens)
        self._steps.follow(step)
        for operation, arguments, settings in self._calls:
            operation(*arguments, **settings)
        return self.logits


@final
class _StepOfEachPass(CacheStep):
    """The step of each pass in turn, its positions in fixed memory; its two operations are recorded whole."""

    def __init__(self, step: CacheStep) -> None:
        self._step, self.recorder = step, _Recorder()
        self.positions, self.num_positions = step.positions.clone(), step.num_positions

    def follow(self, step: CacheStep) -> None:
        """Answer by this step from now on."""
        self._step, self.num_positions = step, step.num_positions
        self.positions.copy_(step.positions)

    @override
    def previous(self, x: Shaped[Tensor, "1 N *D"]) -> Shaped[Tensor, "1 N *D"]:
        return self.recorder.whole(lambda: self._step.previous(x))

    @override
    def attend(
        self,
        q: Float[Tensor, "1 H N K"],
        k: Float[Tensor, "1 Hkv N K"],
        v: Float[Tensor, "1 Hkv N K"],
        *,
        window_tokens: int | None,
    ) -> Float[Tensor, "1 H N K"]:
        return self.recorder.whole(lambda: self._step.attend(q, k, v, window_tokens=window_tokens))


@final
class _Recorder(TorchDispatchMode):
    """Keeps each operation with its arguments; the result of each stays where it was first written."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Operation, Sequence[Any], Mapping[str, Any]]] = []
        self.num_bytes, self.is_whole = 0, True
        self._is_paused = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare the import of torch._dynamo, 4 s of a processor, to keep a compiler out that is not used here."""
        return False

    def whole(self, work: Callable[[], Tensor]) -> Tensor:
        """Do some work and keep it as one operation."""
        self._is_paused = True
        with torch.inference_mode():  # as its caches are
            first = work()
        result = first.clone()
        self.num_bytes += result.nbytes
        self._is_paused = False
        self.calls.append((lambda: result.copy_(work()), (), {}))
        return result

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        settings = dict(kwargs or {})
        result = func(*args, **settings)
        if not self._is_paused:
            self._keep(func, args, settings, result)
        return result

    def _keep(self, func: Any, args: Sequence[Any], settings: dict[str, Any], result: Any) -> None:
        if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
            self.is_whole = False
            return
        if func is _ADD:  # a number made a tensor once takes 1 us instead of 3
            args = (args[0], torch.tensor(args[1], dtype=torch.float64) if isinstance(args[1], float) else args[1])
        if func._schema.is_mutable:  # noqa: SLF001
            self.calls.append((self._quicker(func, (args[0].clone(), *args[1:]), settings), args, settings))
            return
        tensors = (each for each in tree_iter((args, settings)) if isinstance(each, Tensor))
        given = {_memory(each) for each in tensors if not each.is_mkldnn}  # packed weights have no address
        results = [each for each in tree_iter(result) if isinstance(each, Tensor)]
        if all(_memory(each) in given for each in results):
            return  # a view of fixed memory
        self.num_bytes += sum(each.nbytes for each in results)
        if func is _MEAN:  # as torch takes it, in half the time: a sum, then a division by a number made a tensor
            (mean,), (x, *_) = results, args
            num_values = torch.tensor(float(x.numel() // mean.numel()), dtype=torch.float64)
            self.calls.append((torch.sum, args, {**settings, "out": mean}))
            self.calls.append((torch.div, (mean, num_values), {"out": mean}))
            return
        if len(results) == 1:
            into = {**settings, "out": results[0]}
            if (quick := self._quicker(func, args, into)) is not func:
                self.calls.append((quick, args, into))
                return
        self.calls.append((_copying(self._quicker(func, args, settings), results), args, settings))

    def _quicker(self, func: Any, args: Sequence[Any], settings: Mapping[str, Any]) -> Operation:
        """Return torch's own function of the name where it takes the same arguments: half the way of `torch.ops`."""
        name = func.overloadpacket.__name__
        self._is_paused = True
        try:
            for place in (torch, nn_functions, Tensor):
                if (quick := getattr(place, name, None)) is not None and _takes(quick, args, settings):
                    return quick
        finally:
            self._is_paused = False
        return func


def _takes(operation: Operation, args: Sequence[Any], settings: Mapping[str, Any]) -> bool:
    try:
        result = operation(*args, **settings)
    except TypeError:
        return False
    return "out" not in settings or result is settings["out"]  # Tensor.__rshift__ takes `out` and leaves it alone


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _copying(func: Any, results: Sequence[Tensor]) -> Operation:
    """Return an operation whose results go where the first ones are."""
    if len(results) == 1:
        (only,) = results
        return lambda *args, **settings: only.copy_(func(*args, **settings))

    def operation(*args: Any, **settings: Any) -> None:
        found = [each for each in tree_iter(func(*args, **settings)) if isinstance(each, Tensor)]
        for result, new in zip(results, found, strict=True):
            result.copy_(new)

    return operation
