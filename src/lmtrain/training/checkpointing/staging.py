"""Copy an object whole into shared memory, tensors and all, for another process.

It is pickled as torch.save does it, with the bytes of each storage aside: every tensor that torch.save can save, shared
and quantized ones too, comes out of `restore` as it went in, but on the CPU.
"""

import io
import mmap
import os
import pickle
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from typing_extensions import override

from lmtrain.accounting.quantities import format_quantity
from lmtrain.errors import EnvironmentProblem
from lmtrain.training.side_stream import Moment, SideStream

ALIGNMENT: Final = 64
Place = tuple[int, int, torch.dtype]  # start, bytes, type


SHARE_OF_FREE: Final = 0.9  # of free memory may be taken
CGROUPS: Final = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
Undo = Callable[[], object]


class SharedMemory:
    """Memory behind `descriptor`, to pass to a child process; None makes it, empty.

    `settle` prepares a new buffer, so that copies need not wait, and returns the call to undo that.
    """

    def __init__(self, descriptor: int | None = None, *, settle: Callable[[mmap.mmap], Undo] | None = None) -> None:
        self.descriptor = _nameless_file() if descriptor is None else descriptor
        self.buffer: mmap.mmap | None = None
        self.num_bytes = 0
        self._settle = settle
        self._unsettle: Undo | None = None

    def reserve(self, num_bytes: int) -> None:
        """Have at least `num_bytes`, really allocated; their content stays, in a new `buffer`.

        Raises:
            EnvironmentProblem: The host has less free memory.
        """
        if num_bytes <= self.num_bytes:
            return
        there = os.fstat(self.descriptor).st_size
        require_room(num_bytes - there)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.descriptor, 0, num_bytes)
            elif num_bytes > there:  # macOS
                os.ftruncate(self.descriptor, num_bytes)
            self._leave_buffer()
            self.buffer = mmap.mmap(self.descriptor, num_bytes)
        except OSError as problem:
            raise _no_room(num_bytes, str(problem)) from problem
        self.num_bytes = num_bytes
        self._unsettle = self._settle(self.buffer) if self._settle else None

    def close(self) -> None:
        """Give it back, once nobody holds a view of it any more."""
        self._leave_buffer()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _leave_buffer(self) -> None:
        if self._unsettle is not None:
            self._unsettle()
        self.buffer, self._unsettle, self.num_bytes = None, None, 0


@dataclass(frozen=True, kw_only=True)
class Staged:
    """Where in the memory the pickle lies; storages lie before it."""

    pickle_start: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Staging:
    """Copies on their way into the memory; `sources` are kept until `end`."""

    staged: Staged
    end: Moment
    sources: list[torch.UntypedStorage] = field(repr=False)


def stage(thing: object, *, memory: SharedMemory, side: SideStream) -> Staging:
    """Start to copy a thing into memory, grown where it is too small.

    Raises:
        EnvironmentProblem: There is not enough memory.
    """
    target = io.BytesIO()
    pickler = _WithoutStorages(target)
    pickler.dump(thing)
    content = target.getbuffer()
    staged = Staged(pickle_start=pickler.num_bytes, num_bytes=pickler.num_bytes + len(content))
    memory.reserve(staged.num_bytes)
    assert memory.buffer is not None
    memory.buffer[staged.pickle_start : staged.num_bytes] = content
    views = [(_host_view(memory, start, source.nbytes()), _flat(source)) for start, source in pickler.storages.values()]

    def copy() -> None:
        for view, source in views:
            view.copy_(source, non_blocking=True)

    copies = side.start(copy, of_computed=True)
    return Staging(staged=staged, end=copies.end, sources=[source for _, source in pickler.storages.values()])


def num_state_bytes(*states: Any) -> int:
    """Return the bytes of all tensors in nested states: about the size of a copy of them, sharded ones on this rank."""
    return sum(_num_bytes(state) for state in states)


def restore(staged: Staged, *, memory: SharedMemory) -> Any:
    """Return the thing, on the memory itself: the side that staged it must leave the memory alone meanwhile."""
    memory.reserve(staged.num_bytes)
    assert memory.buffer is not None
    content = memory.buffer[staged.pickle_start : staged.num_bytes]
    return _WithStorages(io.BytesIO(content), memory).load()


class _WithoutStorages(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.num_bytes = 0
        self.storages: dict[int, tuple[int, torch.UntypedStorage]] = {}

    @override
    def persistent_id(self, obj: Any) -> Place | None:
        """Name a storage by its place, bytes and type; one shared by several tensors has one place."""
        if isinstance(obj, torch.storage.TypedStorage):
            return (*self._place(obj._untyped_storage), obj.dtype)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if isinstance(obj, torch.UntypedStorage):  # of the types that came last; torch.load too calls it bytes
            return (*self._place(obj), torch.uint8)
        return None

    def _place(self, storage: torch.UntypedStorage) -> tuple[int, int]:
        num_bytes, key = storage.nbytes(), storage._cdata  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if num_bytes and key not in self.storages:
            self.storages[key] = (self.num_bytes, storage)
            self.num_bytes += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return (self.storages[key][0] if num_bytes else 0), num_bytes


class _WithStorages(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: SharedMemory) -> None:
        super().__init__(file)
        self._memory = memory
        self._storages: dict[int, torch.UntypedStorage] = {}

    @override
    def persistent_load(self, pid: Place) -> torch.storage.TypedStorage:
        start, num_bytes, dtype = pid
        if num_bytes == 0:
            untyped = torch.UntypedStorage(0)
        else:
            if start not in self._storages:
                self._storages[start] = _host_view(self._memory, start, num_bytes).untyped_storage()
            untyped = self._storages[start]
        return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _host_view(memory: SharedMemory, start: int, num_bytes: int) -> Tensor:
    assert memory.buffer is not None
    return torch.frombuffer(memory.buffer, dtype=torch.uint8, count=num_bytes, offset=start)


def _flat(storage: torch.UntypedStorage) -> Tensor:
    """Return the bytes of a storage: [bytes] uint8."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _num_bytes(state: Any) -> int:
    if isinstance(state, Tensor):
        if not is_traceable_wrapper_subclass(state):
            return state.nbytes
        names, _ = state.__tensor_flatten__()
        return num_state_bytes(*(getattr(state, name) for name in names))
    if isinstance(state, Mapping):
        return num_state_bytes(*state.values())
    return num_state_bytes(*state) if isinstance(state, list | tuple) else 0


def require_room(num_bytes: int) -> None:
    """Refuse to take more memory than is free.

    Raises:
        EnvironmentProblem: The host has not so much.
    """
    free = free_host_bytes()
    if free is not None and num_bytes > SHARE_OF_FREE * free:
        raise _no_room(num_bytes, f"{format_quantity(free, 'bytes')} of host memory is free")


def free_host_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes free for this process without swapping, by its host and container; None: unknown."""
    found = [_available(proc / "meminfo"), *(_left(cgroup / limit, cgroup / used) for limit, used in CGROUPS)]
    return min((num_bytes for num_bytes in found if num_bytes is not None), default=None)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("checkpoint")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _available(meminfo: Path) -> int | None:
    try:
        lines = [line.split() for line in meminfo.read_text().splitlines()]
    except OSError:
        return None
    return next((int(words[1]) * 1024 for words in lines if words and words[0] == "MemAvailable:"), None)


def _left(limit: Path, used: Path) -> int | None:
    try:
        return max(0, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit: the word max
        return None


def _no_room(num_bytes: int, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(f"A copy of the state needs {format_quantity(num_bytes, 'bytes')}, but {why}.")
