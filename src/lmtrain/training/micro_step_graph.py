"""Forward and backward of a micro-batch recorded once and launched as one: CUDA graphs.

Of a small model the host takes longer to launch a step's kernels than the device to run them. Why the whole micro-step
is recorded, and not each compiled part: docs/decisions/0013.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from lmtrain.models.head import LossTotal
from lmtrain.training.objectives.objective import ObjectiveSums
from lmtrain.training.token_batch import TokenBatch

WARM_UP_MICRO_STEPS: Final = 3  # for the compiler, the libraries' choice of kernels, and the memory of gradients
Result = TypeVar("Result")
MicroStep = Callable[[TokenBatch], tuple[LossTotal | ObjectiveSums, Tensor]]


class Graph:
    """torch's recorder, on a separate stream, also for warming up: autograd's and cuBLAS's memory is a stream's.

    Only this thread's calls are watched while it records: others pin the batches to come.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._graph = torch.cuda.CUDAGraph()

    def prepare(self, work: Callable[[], Result], /) -> Result:
        """Do the work as it is, where it will be recorded."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = work()
        torch.cuda.current_stream().wait_stream(self._stream)
        return result

    def capture(self, work: Callable[[], Result], /) -> Result:
        """Record the work without doing it; its results are filled by every `replay`."""
        with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"):
            return work()

    def replay(self) -> None:
        """Do the recorded work, reading and writing the recorded memory."""
        self._graph.replay()


MakeGraph = Callable[[torch.device], Graph]


class RecordedMicroStep:
    """A micro-step, recorded at its fourth call and from then on replayed.

    It must add to `.grad` of the parameters in place, so these have to stay: zero them, never replace them; nor may
    weights move. Results hold until the next call. A batch of another shape runs as it is.
    """

    def __init__(self, micro_step: MicroStep, parameters: Iterable[Parameter], *, graph: Graph) -> None:
        self._micro_step, self._parameters, self._graph = micro_step, list(parameters), graph
        self._num_calls = 0
        self._inputs: TokenBatch | None = None
        self._gradients: list[Tensor | None] = []
        self._addresses: list[int] = []
        self._results: tuple[LossTotal | ObjectiveSums, Tensor] | None = None

    def __call__(self, batch: Tensor | TokenBatch) -> tuple[LossTotal | ObjectiveSums, Tensor]:
        """Add a batch's gradients, and return its sums and its loss, without a gradient."""
        batch = TokenBatch(batch) if isinstance(batch, Tensor) else batch
        self._num_calls += 1
        if self._num_calls <= WARM_UP_MICRO_STEPS:
            return self._graph.prepare(lambda: self._micro_step(batch))
        if self._inputs is None:
            self._record(batch)
        elif _form(batch) != _form(self._inputs):
            return self._micro_step(batch)
        assert self._inputs is not None
        assert self._results is not None
        self._require_same_memory()
        for held, given in zip(self._inputs, batch, strict=True):
            if held is not None and given is not None:
                held.copy_(given)
        self._graph.replay()
        return self._results

    def zero_gradients(self) -> None:
        """Set gradients to zero where they are."""
        torch._foreach_zero_([held.grad for held in self._parameters if held.grad is not None])  # pyright: ignore[reportPrivateUsage]  # as optimizers do

    def _record(self, batch: TokenBatch) -> None:
        others = (None if part is None else part.clone() for part in batch[1:])
        inputs = TokenBatch(batch.ids.clone(), *others)
        self._inputs = inputs
        self._gradients = [parameter.grad for parameter in self._parameters]
        self._addresses = [parameter.data_ptr() for parameter in self._parameters]
        self._results = self._graph.capture(lambda: self._micro_step(inputs))

    def _require_same_memory(self) -> None:
        known = zip(self._parameters, self._gradients, self._addresses, strict=True)
        if any(held.grad is not gradient or held.data_ptr() != address for held, gradient, address in known):
            raise RuntimeError(
                "compile.cuda_graphs=true: a weight or its gradient was replaced since the step was recorded; write to "
                "them in place, or use compile.cuda_graphs=false."
            )


def _form(batch: TokenBatch) -> list[tuple[torch.Size, torch.dtype] | None]:
    return [None if part is None else (part.shape, part.dtype) for part in batch]
