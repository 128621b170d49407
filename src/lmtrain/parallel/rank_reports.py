"""What ranks know together: values, problems and differences of all ranks. Every rank calls these functions together.

Unconnected processes report through files in a shared folder instead. Copies of the same numbers are compared by sums
of their bit patterns, in which one flipped bit shows.
"""

import pickle
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor, Shard

from lmtrain.parallel.shard_reading import unpickle
from lmtrain.storage.durable import write_durably
from lmtrain.storage.hashed_folder import aside_of, commit, not_written


def on_all_ranks(value: Any) -> list[Any]:
    """Return each rank's value, by rank; without a process group this one's alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


T = TypeVar("T")
POLL_SECONDS: Final = 0.02


def first_problem(action: Callable[[], object], *, acts: bool = True) -> str | None:
    """Let each rank that `acts` do it; return one problem on all: none waits for a failed one."""
    mine: str | None = None
    try:
        if acts:
            action()
    except CheckpointException as failure:  # torch's own, not an Exception
        mine = "; ".join(f"rank {rank}: {cause}" for rank, (cause, _) in failure.failures.items())
    except (OSError, RuntimeError) as failure:
        mine = str(failure) or repr(failure)
    return next(filter(None, on_all_ranks(mine)), None)


def write_part(
    final: Path,
    *,
    rank: int,
    num_ranks: int,
    timeout_seconds: float,
    write: Callable[[], T],
    facts: dict[str, Any],
    finish: Callable[[list[T]], object] = lambda parts: None,
) -> T | None:
    """Write this rank's part of a checkpoint, aside of its `final` place; the first rank waits, and commits the whole.

    Processes that do this are not connected: the others report to the first one through files. `finish` receives what
    each rank's `write` returned.
    """
    aside = aside_of(final)
    if rank:
        return _report(aside, rank, write)
    try:
        parts = [write(), *(report_of(aside, other, timeout_seconds=timeout_seconds) for other in range(1, num_ranks))]
        finish(parts)
        commit(aside, final, facts=facts)
    except (OSError, RuntimeError) as problem:
        shutil.rmtree(aside, ignore_errors=True)
        raise not_written(final, str(problem)) from problem
    return None


def num_bytes_in(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _report(folder: Path, rank: int, write: Callable[[], T]) -> T:
    """Write, and report the outcome to the first rank's process, through their shared folder."""
    done, failed = _reports(folder, rank)
    try:
        result = write()
        write_durably(done, pickle.dumps(result))
    except (OSError, RuntimeError) as problem:
        try:
            write_durably(failed, (str(problem) or repr(problem)).encode())
        except OSError:
            failed.touch()  # a name fits where the disk is too full for a word
        raise
    return result


def report_of(folder: Path, rank: int, *, timeout_seconds: float) -> Any:
    """Wait for the report of another rank's process, of this run and moment, on its writing."""
    done, failed = _reports(folder, rank)
    deadline = time.monotonic() + timeout_seconds
    while not done.exists():
        if failed.exists():
            raise RuntimeError(f"rank {rank}: {failed.read_text() or 'it could not write'}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"rank {rank} has not written its shards within {timeout_seconds:g} s")
        time.sleep(POLL_SECONDS)
    result = unpickle(done.read_bytes())
    done.unlink()
    return result


def _reports(folder: Path, rank: int) -> tuple[Path, Path]:
    return folder / f".rank{rank}.done", folder / f".rank{rank}.failed"


INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bit_sums(tensors: Iterable[Tensor]) -> Tensor:
    """Return the sum of each tensor's bit patterns as integers, of this rank's part: int64 [tensors]."""
    parts = (tensor.detach() for tensor in tensors)
    local = (part.to_local() if isinstance(part, DTensor) else part for part in parts)
    sums = [part.contiguous().view(INTEGERS[part.element_size()]).sum(dtype=torch.int64) for part in local]
    return torch.stack(sums) if sums else torch.zeros(0, dtype=torch.int64)


def part_of(tensors: Iterable[Tensor]) -> tuple[tuple[int, ...], ...]:
    """Return this rank's place in the cuts of each tensor; ranks with the same places hold copies."""
    return tuple(_place(tensor) for tensor in tensors)


def replica_groups(parts: Sequence[object]) -> list[list[int]]:
    """Group ranks by their parts; those without a copy elsewhere are left out."""
    groups: dict[object, list[int]] = {}
    for rank, part in enumerate(parts):
        groups.setdefault(part, []).append(rank)
    return [ranks for ranks in groups.values() if len(ranks) > 1]


def _place(tensor: Tensor) -> tuple[int, ...]:
    if not isinstance(tensor, DTensor):
        return ()
    coordinates = tensor.device_mesh.get_coordinate() or []
    return tuple(at for at, cut in zip(coordinates, tensor.placements, strict=True) if isinstance(cut, Shard))


Tensors = Mapping[str, Tensor]
InModelOrder = Callable[[Mapping[str, Any]], dict[str, Any]]


def whole(tensors: Tensors, in_model_order: InModelOrder) -> dict[str, Tensor]:
    """Return tensors by their parameters' names, whole, with the rows of the model, on the CPU."""
    return {name: _whole(one.detach()) for name, one in in_model_order(tensors).items()}


def differing(
    own: Tensors, expected: Tensors, allowed: Mapping[str, float], in_model_order: InModelOrder
) -> dict[str, tuple[float, tuple[int, ...]]]:
    """Return each tensor's largest difference over all ranks, and the ranks with entries beyond the allowed.

    A tensor of only one side differs by infinity.
    """
    mine = whole(own, in_model_order)
    beyond = {name: _difference(mine.get(name), one) for name, one in expected.items()}
    beyond |= {name: _difference(one, None) for name, one in mine.items() if name not in expected}
    names = [*beyond]
    largest = torch.stack([one.max() if one.numel() else torch.zeros(()) for one in beyond.values()])
    largest = largest.double().nan_to_num(nan=torch.inf, posinf=torch.inf)
    if dist.is_initialized():
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    limits = [allowed.get(name, 0.0) for name in names]
    wrong = [name for name, one, limit in zip(names, largest.tolist(), limits, strict=True) if not one <= limit]
    holders = _holders(own, wrong, in_model_order)
    ranks = {
        name: _ranks_beyond(beyond[name], holders.get(name), limit)
        for name, limit in zip(names, limits, strict=True)
        if name in wrong
    }
    ranks = _joined(ranks)
    return {name: (one, ranks.get(name, ())) for name, one in zip(names, largest.tolist(), strict=True)}


def _whole(tensor: Any) -> Tensor:
    found: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found.to("cpu", copy=True)


def _difference(found: Tensor | None, expected: Tensor | None) -> Tensor:
    if found is None or expected is None or found.shape != expected.shape:
        return torch.full((1,), torch.inf)
    return (found.float() - expected.float()).abs()


def _holders(own: Tensors, names: list[str], in_model_order: InModelOrder) -> dict[str, Tensor]:
    """Return each entry's rank."""
    filled = {name: torch.full_like(own[name].detach(), float(_rank())) for name in names if name in own}
    return whole(filled, in_model_order)


def _ranks_beyond(difference: Tensor, holders: Tensor | None, limit: float) -> tuple[int, ...]:
    is_beyond = ~(difference <= limit)
    if holders is None or holders.shape != difference.shape:
        return (_rank(),)
    return tuple(int(rank) for rank in holders[is_beyond].unique().tolist())


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _joined(ranks: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Join the findings of all ranks."""
    found = on_all_ranks(ranks)
    return {name: tuple(sorted({rank for one in found for rank in one[name]})) for name in ranks}
