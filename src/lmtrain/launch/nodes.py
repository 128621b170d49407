"""A run on several nodes, as every launcher gets it: its words, and the numbers of the Trainer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PORT: Final = 29_500  # torchrun's own default
LONGEST_LABEL: Final = 50  # of 63 characters: an index follows


@dataclass(frozen=True, kw_only=True)
class NodesJob:
    """One start of a run: `words` for `lmtrain train`, the Trainer's nodes and ranks a node, and the nodes' device.

    `device` is None on nodes without a GPU, and "" where their GPU is not named.
    """

    name: str
    words: Sequence[str]
    num_nodes: int
    ranks_per_node: int
    device: str | None

    @property
    def label(self) -> str:
        """Return the run's name as a host's: small letters, digits and hyphens, a letter first."""
        label = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        label = label if label[:1].isalpha() else f"run-{label}"
        return label[:LONGEST_LABEL].rstrip("-")

    def train(self, python: str) -> list[str]:
        """Return the command of one rank."""
        return [python, "-P", "-m", "lmtrain.cli", "train", *self.words]

    def torchrun(self, python: str, *, node_rank: str, address: str, port: int = PORT) -> list[str]:
        """Return the command of one node: torchrun's agent with its ranks; nodes meet at the first one's address.

        A static rendezvous without restarts: one node's end is the end of all, and whoever started them starts them
        again.
        """
        where = [f"--nnodes={self.num_nodes}", f"--nproc-per-node={self.ranks_per_node}", f"--node-rank={node_rank}"]
        where += [f"--master-addr={address}", f"--master-port={port}"]
        return [python, "-P", "-m", "torch.distributed.run", *where, "--no-python", *self.train(python)]
