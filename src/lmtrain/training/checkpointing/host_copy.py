"""Copy an object whole into host memory, tensors and all, while the device goes on.

It is pickled as torch.save does it, with the bytes of each storage aside: every tensor that torch.save can save, shared
and quantized ones too, comes out of `restore` as it went in, but on the CPU.
"""

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from typing_extensions import override

Place = tuple[int, torch.dtype]  # number of a storage, and its type


@final
@dataclass(frozen=True)
class HostCopy:
    """An object's pickle, and its storages on their way to the host; `sources` are kept until the copy's end.

    `copied` is the copy's end on a GPU; None: it is done.
    """

    content: bytes
    buffers: list[Tensor]
    sources: list[torch.UntypedStorage]
    copied: torch.Event | None

    def restore(self) -> Any:
        """Wait for the copy and return the object, on the host's memory itself."""
        if self.copied is not None:
            self.copied.synchronize()
        self.sources.clear()
        return _WithStorages(io.BytesIO(self.content), self.buffers).load()

    def hold_compute(self) -> None:
        """Let the device's work from now on wait for the copy."""
        if self.copied is not None:
            torch.cuda.current_stream().wait_event(self.copied)  # pyright: ignore[reportArgumentType]  # one of CUDA


@final
class HostCopier:
    """Makes copies, one at a time: the next one reuses the memory of the one before."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._buffers: list[Tensor] = []

    def copy(self, thing: object) -> HostCopy:
        """Start to copy a thing."""
        target = io.BytesIO()
        pickler = _WithoutStorages(target)
        pickler.dump(thing)
        sources = list(pickler.storages)
        if [buffer.nbytes for buffer in self._buffers] != [source.nbytes() for source in sources]:
            self._buffers.clear()
            place: dict[str, Any] = {"dtype": torch.uint8, "pin_memory": self._stream is not None}
            self._buffers += [torch.empty(source.nbytes(), **place) for source in sources]
        return HostCopy(target.getvalue(), self._buffers, sources, self._fill(sources))

    def _fill(self, sources: list[torch.UntypedStorage]) -> torch.Event | None:
        """Copy on the second stream, after the device's earlier work; elsewhere at once."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):  # None: no change
            for buffer, source in zip(self._buffers, sources, strict=True):
                flat = torch.empty(0, dtype=torch.uint8, device=source.device).set_(source)
                buffer.copy_(flat, non_blocking=True)
        return None if self._stream is None else self._stream.record_event()


class _WithoutStorages(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._numbers: dict[int, int] = {}
        self.storages: list[torch.UntypedStorage] = []

    @override
    def persistent_id(self, obj: Any) -> Place | None:
        """Name a storage by its number and type; one shared by several tensors has one number."""
        if isinstance(obj, torch.storage.TypedStorage):
            return self._number(obj._untyped_storage), obj.dtype  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if isinstance(obj, torch.UntypedStorage):  # of the types that came last; torch.load too calls it bytes
            return self._number(obj), torch.uint8
        return None

    def _number(self, storage: torch.UntypedStorage) -> int:
        key = storage._cdata  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if key not in self._numbers:
            self._numbers[key] = len(self.storages)
            self.storages.append(storage)
        return self._numbers[key]


class _WithStorages(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, storages: list[Tensor]) -> None:
        super().__init__(file)
        self._storages = [storage.untyped_storage() for storage in storages]

    @override
    def persistent_load(self, pid: Place) -> torch.storage.TypedStorage:
        number, dtype = pid
        return torch.storage.TypedStorage(wrap_storage=self._storages[number], dtype=dtype, _internal=True)


def num_state_bytes(state: Any) -> int:
    """Return the bytes of all tensors in a nested state: about the size of a copy; sharded ones on this rank."""
    if isinstance(state, Tensor):
        if not is_traceable_wrapper_subclass(state):
            return state.nbytes
        names, _ = state.__tensor_flatten__()
        return num_state_bytes([getattr(state, name) for name in names])
    values = state.values() if isinstance(state, Mapping) else state if isinstance(state, list | tuple) else ()
    return sum(map(num_state_bytes, values))


def available_bytes(meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the memory free for this machine's next allocation, within the process's control group; None: unknown."""
    found: list[int] = []
    try:
        lines = meminfo.read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        found += [max(0, int(limit) - int(used))] if limit.isdigit() else []
    except OSError:  # not Linux, or no control group
        pass
    return min(found, default=None)
