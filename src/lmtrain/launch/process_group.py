"""Join the ranks of a job, check that they train the same run, and let rank 0 decide for all."""

import atexit
import contextlib
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, TypeVar

import torch
import torch.distributed as dist

from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError
from lmtrain.launch.detect import OuterLauncher
from lmtrain.parallel.rank_reports import on_all_ranks

Outcome = TypeVar("Outcome")
LOOPBACK: Final = "lo0" if sys.platform == "darwin" else "lo"


def join(
    outer: OuterLauncher | None, *, timeout_seconds: float = 600.0, variables: Mapping[str, str | int] | None = None
) -> None:
    """Open the process group of a job of several ranks; Lightning then uses it as it finds it.

    `variables` are the cluster's, as NCCL's; they do not replace those of this rank's environment.

    A collective that waits longer than `timeout_seconds` for a rank ends the job (torch's own default is half an
    hour). Ranks of one machine listen only on its loopback interface; under an outer launcher they meet over the
    network, where torch asks for no key and unpickles all messages.
    """
    if outer is None or outer.world_size == 1 or dist.is_initialized():
        return
    for name, value in (variables or {}).items():
        os.environ.setdefault(name, str(value))
    os.environ.update(_as_torchrun(outer, os.environ))
    device_id = None
    if torch.cuda.is_available():
        is_alone = torch.cuda.device_count() == 1  # SLURM may show each task its own GPU only, as number 0
        device_id = torch.device("cuda", 0 if is_alone else outer.local_rank)
        torch.cuda.set_device(device_id)
    backend = "cpu:gloo,cuda:nccl" if device_id else "gloo"
    dist.init_process_group(
        backend,
        store=_store_of(outer, os.environ, timedelta(seconds=timeout_seconds)),
        rank=outer.rank,
        world_size=outer.world_size,
        timeout=timedelta(seconds=timeout_seconds),
        device_id=device_id,
    )
    atexit.register(leave)


def _as_torchrun(outer: OuterLauncher, environment: Mapping[str, str]) -> dict[str, str]:
    """Return a rank's variables in torchrun's form, read by torch and Lightning under every launcher."""
    ranks = {
        "RANK": outer.rank,
        "LOCAL_RANK": outer.local_rank,
        "GROUP_RANK": outer.node_rank,
        "WORLD_SIZE": outer.world_size,
        "LOCAL_WORLD_SIZE": outer.local_world_size,
    }
    meeting = {"MASTER_ADDR": outer.address, "MASTER_PORT": outer.port}
    known = {name: value for name, value in meeting.items() if value is not None and name not in environment}
    return {name: str(value) for name, value in {**ranks, **known}.items()}


def _store_of(outer: OuterLauncher, environment: Mapping[str, str], timeout: timedelta) -> dist.Store | None:
    """Return the store where the ranks meet; None leaves the choice to torch.

    torchrun's agents keep their store over restarts, with the addresses of ranks that are gone (torch 2.13).
    """
    if outer.store_file:
        for backend in ("GLOO", "NCCL"):  # against an environment meant for jobs of several nodes
            os.environ[f"{backend}_SOCKET_IFNAME"] = LOOPBACK
        return dist.FileStore(str(outer.store_file), outer.world_size)
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    store = dist.TCPStore(host, port, outer.world_size, is_master=False, timeout=timeout)
    deadline = time.monotonic() + timeout.total_seconds()
    return dist.PrefixStore(_name_of_start(store, outer.rank, outer.world_size, deadline=deadline), store)


def _name_of_start(store: dist.Store, rank: int, world_size: int, *, deadline: float) -> str:
    """Return a name that the ranks of this start share with no earlier one.

    The agents' counts of restarts differ once a node has come back. So rank 0 names the start, and lists the ranks that
    it sees until each has found itself in the list: an entry may be of an earlier start.
    """
    own = uuid.uuid4().hex
    store.set(f"rank_{rank}", own)
    while time.monotonic() < deadline:
        if rank == 0:
            store.set("start", " ".join(store.get(f"rank_{other}").decode() for other in range(world_size)))
            with contextlib.suppress(dist.DistStoreError):
                store.wait([f"{own}_{other}" for other in range(1, world_size)], timedelta(seconds=1))
                return own
        elif own in (listed := store.get("start").decode().split()):
            store.set(f"{listed[0]}_{rank}", "")
            return listed[0]
        else:
            time.sleep(0.05)
    raise dist.DistStoreError(f"{world_size} ranks did not meet in time")


def leave() -> None:
    """Close the process group, if there is one.

    A process with an open gloo group sometimes aborts at its end: 2 of 24 ranks on a busy machine (torch 2.13).
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def broadcast_outcome(decide: Callable[[], Outcome]) -> Outcome:
    """Let rank 0 decide, and return its result, or raise its refusal, on every rank."""
    if not dist.is_initialized():
        return decide()
    outcome: list[object] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = decide()
        except LMTRAIN_ERRORS as error:
            outcome[1] = error
        except BaseException as error:
            outcome[1] = RuntimeError(f"rank 0 failed: {error!r}")
            dist.broadcast_object_list(outcome)
            raise
    dist.broadcast_object_list(outcome)
    if isinstance(outcome[1], Exception):
        raise outcome[1]
    return outcome[0]  # pyright: ignore[reportReturnType]


def agree_on(hash_text: str) -> None:
    """Compare a hash over all ranks; every rank returns or every rank raises."""
    hashes = on_all_ranks(hash_text)
    if len(set(hashes)) == 1:
        return
    by_hash = {text: [rank for rank, found in enumerate(hashes) if found == text] for text in dict.fromkeys(hashes)}
    found = "; ".join(f"{text} on rank {', '.join(map(str, ranks[:8]))}" for text, ranks in by_hash.items())
    raise ConfigurationError(
        f"the ranks do not have the same configuration: {found}; "
        "give every rank the same command, overrides and files, or let lmtrain start the ranks (trainer.devices)."
    )
