"""The rendezvous of a job on one machine, without a listening port: the agent's store is in its memory.

torch's own (c10d) opens two stores on every interface of the machine, without a key, and unpickles anyone's bytes from
them (2.13). The ranks meet in a file in a folder of the agent's user alone, see process_group.join.
"""

from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo
from typing_extensions import override


class LocalRendezvous(RendezvousHandler):
    """One agent without others to wait for."""

    def __init__(self, run_id: str) -> None:
        """`run_id` is the ranks' TORCHELASTIC_RUN_ID."""
        self._run_id = run_id
        self._is_closed = False

    @override
    def get_backend(self) -> str:
        """Name it for torch's records."""
        return "local"

    @override
    def next_rendezvous(self) -> RendezvousInfo:
        """Return a new store of one agent; no port is open where MASTER_PORT points."""
        nowhere = RendezvousStoreInfo(master_addr="localhost", master_port=0)
        return RendezvousInfo(HashStore(), rank=0, world_size=1, bootstrap_store_info=nowhere)

    @override
    def is_closed(self) -> bool:
        """Return whether the job has ended."""
        return self._is_closed

    @override
    def set_closed(self) -> None:
        """Note the job's end."""
        self._is_closed = True

    @override
    def num_nodes_waiting(self) -> int:
        """Return 0: there is no other node."""
        return 0

    @override
    def get_run_id(self) -> str:
        """Return the ranks' TORCHELASTIC_RUN_ID."""
        return self._run_id

    @override
    def shutdown(self) -> bool:
        """Return at once: nothing was opened."""
        return True
