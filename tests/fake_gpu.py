"""An H200 without one: Inductor compiles for it, and the code runs on fake tensors with kernels that do nothing.

torch's autograd asks a driver for its streams, and there is none. So a model's graphs are cut on the CPU, compiled for
the GPU, and each is run by itself: `Graph.run`. A function without gradients compiles on the fake GPU as it is.
"""

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.utils._triton
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from lmtrain.models import feed_forward
from lmtrain.simulate.live_memory import LiveBytes

PROPERTIES = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    total_memory=143_771 << 20,
    multi_processor_count=132,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10,
    L2_cache_size=60 << 20,
    warp_size=32,
    gcnArchName="",
    uuid="",
)
SETTINGS = {"compile_threads": 1, "force_disable_caches": True, "joint_graph_constant_folding": False}


class GpuBytes(LiveBytes):
    """The bytes of live tensors, also around compiled functions."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let functions compile as they do without a count."""
        return True


HELD = ("primals", "arg")  # inputs of a graph that belong to others, as weights do


@dataclass
class Graph:
    """One compiled graph: its code, and how to run it on tensors without bytes."""

    code: str
    call: Callable[[list[Any]], Sequence[Any]]
    inputs: Sequence[Any]
    names: Sequence[str]
    is_backward: bool

    @property
    def buffers(self) -> list[tuple[tuple[int, ...], str]]:
        """Return shape and dtype of every buffer allocated by the code."""
        found = re.findall(r"empty_strided_cuda\(\(([\d, ]*)\), \([\d, ]*\), torch\.(\w+)\)", self.code)
        return [(tuple(int(side) for side in shape.split(",") if side.strip()), dtype) for shape, dtype in found]

    @property
    def num_kernels(self) -> int:
        """Count Inductor's own kernels, as they are launched once through the graph."""
        return len(re.findall(r"\.run\(", self.code.partition("def call")[2]))

    def run(self) -> tuple[int, int]:
        """Run it; return the bytes left by it and its peak, both beyond the inputs that outlive it."""
        held: list[Tensor] = []
        arguments: list[Any] = []
        with GpuBytes() as live:
            for name, value in zip(self.names, self.inputs, strict=True):
                if not isinstance(value, Tensor):
                    arguments.append(value)
                    continue
                made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
                arguments.append(made)
                if name.startswith(HELD):
                    held.append(made)
                del made
            outside = sum({id(one.untyped_storage()): one.untyped_storage().nbytes() for one in held}.values())
            live.peak = live.now
            results = self.call(arguments)
            left, peak = live.now - outside, live.peak - outside
        del results
        return left, peak


@dataclass
class FakeGpu:
    """The graphs compiled so far, and the kernels launched so far by name."""

    graphs: list[Graph] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)

    def backend(self) -> Any:
        """Return a compiler to cut a graph in two, compile both halves for the GPU, and run them on the CPU."""
        return aot_autograd(
            fw_compiler=self._half(is_backward=False),
            bw_compiler=self._half(is_backward=True),
            inference_compiler=self._half(is_backward=False),
            decompositions=select_decomp_table(),
            partition_fn=min_cut_rematerialization_partition,
        )

    def _half(self, *, is_backward: bool) -> Any:
        def compile_half(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
            moved, mode = deepcopy(graph), next(one.fake_mode for one in inputs if isinstance(one, FakeTensor))
            with mode:
                on_gpu = [_on_gpu(one) for one in inputs]
            for node in moved.graph.nodes:
                if "device" in node.kwargs:
                    node.kwargs = {**node.kwargs, "device": torch.device("cuda", 0)}
            FakeTensorProp(moved, mode=mode).propagate_dont_convert_inputs(*on_gpu)
            with tracing(TracingContext(mode)):
                compile_fx_inner(moved, on_gpu, is_backward=is_backward)
            return make_boxed_func(graph.forward)

        return compile_half


def _on_gpu(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda:0")


@dataclass
class Products:
    """Stands in for products of a library, with results in buffers of the code's own."""

    gpu: FakeGpu

    def __getattr__(self, name: str) -> Any:
        """Return a product that does nothing but note its name."""
        return lambda *_, **__: self.gpu.launched.append(name)


@contextmanager
def fake_gpu() -> Generator[FakeGpu]:
    """Let torch see one H200 in this block, in a mode of fake tensors."""
    found = FakeGpu()
    torch._C._ensureCUDADeviceGuardSet()  # for no look at streams
    with ExitStack() as stack:
        for owner, members in _replacements(found).items():
            for name, value in members.items():
                stack.enter_context(mock.patch.object(owner, name, value, create=True))
        stack.enter_context(inductor.patch(SETTINGS))
        _forget_triton()
        stack.callback(_forget_triton)
        torch._dynamo.reset()
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield found
    torch._dynamo.reset()


def _forget_triton() -> None:
    """Let torch ask anew for a GPU with triton: it keeps its first answer."""
    for kept in vars(torch.utils._triton).values():
        if hasattr(kept, "cache_clear"):
            kept.cache_clear()


def _replacements(found: FakeGpu) -> dict[Any, dict[str, Any]]:
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.fx_passes import joint_graph
    from torch._inductor.graph import GraphLowering
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    to_module = GraphLowering._compile_to_module

    def noted(self: Any) -> Any:
        module = to_module(self)
        module.extern_kernels = Products(found)
        names = list(self.graph_input_names)
        graph = Graph(Path(module.__file__).read_text(), module.call, self.example_inputs, names, self.is_backward)
        found.graphs.append(graph)
        return module

    def kernel(_: Any, name: str, *__: Any, **___: Any) -> Any:
        return SimpleNamespace(run=lambda *_, **__: found.launched.append(name))

    def empty(shape: Any, stride: Any, dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, stride, dtype=dtype, device="cuda")

    def view(tensor: Tensor, shape: Any, stride: Any, more: int = 0) -> Tensor:
        return torch.as_strided(tensor, shape, stride, tensor.storage_offset() + more)

    return {
        feed_forward: {"has_kernel": lambda _: True},
        torch.cuda: {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": lambda *_: None,
            "get_device_properties": lambda *_: PROPERTIES,
            "get_device_capability": lambda *_: (PROPERTIES.major, PROPERTIES.minor),
            "get_device_name": lambda *_: PROPERTIES.name,
            "get_rng_state": lambda *_: torch.empty(16, dtype=torch.uint8),
            "set_rng_state": lambda *_: None,
            "synchronize": lambda *_: None,
            "_lazy_init": lambda: None,
            "_exchange_device": lambda *_: 0,
            "_maybe_exchange_device": lambda *_: 0,
            "_DeviceGuard": lambda *_: ExitStack(),
        },
        CudaInterface: {
            "get_device_properties": staticmethod(lambda *_: PROPERTIES),
            "current_device": staticmethod(lambda *_: 0),
            "exchange_device": staticmethod(lambda *_: 0),
            "maybe_exchange_device": staticmethod(lambda *_: 0),
            "synchronize": staticmethod(lambda *_: None),
            "get_raw_stream": staticmethod(lambda *_: 0),
        },
        torch._C: {"_cuda_getCurrentRawStream": lambda *_: 0},
        torch._C._dynamo.guards: {"_empty_strided_cuda": empty, "_reinterpret_tensor": view},
        AsyncCompile: {"triton": kernel},
        GraphLowering: {"_compile_to_module": noted},
        driver: {"_active": SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32))},
        joint_graph: {"lazy_init": lambda *_: None},  # patterns of attention, found by tracing on a real device
    }
