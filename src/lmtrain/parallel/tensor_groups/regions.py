"""The ranks of a tensor group hold the same tokens, a slice of the sequence each, or parts of a sum: moves in between.

Each move is a change of a DTensor's placement, and its gradient the change back. Sequence parallelism: arXiv 2205.05198
section 4.2.2. B batch, T tokens, D width.
"""

from typing import final

from jaxtyping import Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

WHOLE, PARTS, SLICE = Replicate(), Partial(), Shard(1)


@final
class Regions:
    """The moves within one tensor group; a sequence not divided by it stays whole, as of a text being written."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self._stream: Placement = WHOLE

    def slice(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Enter the layers: keep this rank's slice of the whole sequence of tokens."""
        self._stream = SLICE if x.shape[1] % self.mesh.size() == 0 else WHOLE
        return self._moved(x, WHOLE, self._stream)

    def gather(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Put slices together, for work divided over the ranks: gradients are parts of a sum."""
        return self._moved(x, self._stream, WHOLE, gradient=PARTS)

    def sum_to_slice(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Add up the parts of all ranks, and keep this rank's slice."""
        return self._moved(x, PARTS, self._stream)

    def sum_to_whole(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Add up the parts of all ranks, on all ranks."""
        return self._moved(x, PARTS, WHOLE)

    def _moved(self, x: Tensor, source: Placement, target: Placement, *, gradient: Placement | None = None) -> Tensor:
        placed = DTensor.from_local(x, self.mesh, [source], run_check=False)
        moved = placed.redistribute(placements=[target])
        return moved.to_local(grad_placements=[gradient or target])
