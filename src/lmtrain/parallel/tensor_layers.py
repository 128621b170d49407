"""Layers cut over the ranks of a tensor group, and the messages between them.

A layer's first matrices are cut along their rows, heads and features whole on a rank, and its last along their columns
(arXiv 1909.08053 section 3). A fused matrix keeps its rows in the order of ranks: rank r has its share of each. Between
the layers ranks hold the same tokens, a slice of the sequence each (sequence parallelism, arXiv 2205.05198 section
4.2.2), or parts of a sum. Each move sends one message, and its gradient sends the message back. The messages are
torch's functional collectives, which the compiler takes into its graphs.
B batch, T tokens, D width, R ranks, V vocabulary, E rows of a matrix, I its columns, O outputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, final, runtime_checkable

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import functional as F
from typing_extensions import override

from lmtrain.errors import ConfigurationError
from lmtrain.models.documents import Documents
from lmtrain.models.embeddings import Smear, smeared
from lmtrain.models.mixers import RecurrentLayer
from lmtrain.models.mixture_of_experts import ExpertMatrices, MixtureOfExperts
from lmtrain.models.residual_stream import RMSNorm
from lmtrain.parallel.gradients import local_part


@runtime_checkable
class HasProduct(Protocol):
    """A linear layer with its own product, [B, T, I] by [O, I]; both sides of a matrix divide by `multiple`."""

    multiple: int

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply with a part of the matrix and of the bias: [B, T, I] -> [B, T, O]."""
        ...


@runtime_checkable
class HasAdapter(Protocol):
    """A linear layer with a trained change next to its frozen weight (adapters/low_rank.py)."""

    adapter: Any


SEQUENCE: Final = 1  # the axis of tokens
OPERATORS: Final[Any] = torch.ops._c10d_functional  # noqa: SLF001


@final
class Regions:
    """The moves within one tensor group; a sequence not divided by it stays whole, as of a text being written."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self._group = Group(mesh.get_group().group_name, mesh.size(), mesh.get_local_rank())
        self._is_sliced = False

    def enter(self, num_tokens: int) -> int:
        """Slice sequences of this length, or leave them whole; return the tokens of each on this rank."""
        self._is_sliced = num_tokens % self._group.num_ranks == 0
        return num_tokens // self._group.num_ranks if self._is_sliced else num_tokens

    def slice(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Enter the layers: keep this rank's slice of the whole sequence of tokens."""
        self.enter(x.shape[SEQUENCE])
        return move(x, "slice", self._group) if self._is_sliced else x

    def gather(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Put slices together, for work divided over the ranks: gradients are parts of a sum."""
        return move(x, "gather" if self._is_sliced else "share", self._group)

    def own_part(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Keep this rank's slice of a sequence whose gradients are parts of a sum."""
        return sliced(x, self._group) if self._is_sliced else x

    def sum_to_slice(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Add up the parts of all ranks, and keep this rank's slice."""
        return move(x, "scatter" if self._is_sliced else "sum", self._group)

    def sum_to_whole(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Add up the parts of all ranks, on all ranks."""
        return move(x, "sum", self._group)

    def total(self, x: Float[Tensor, "B T 1"]) -> Float[Tensor, "B T 1"]:
        """Add up the parts of all ranks for work divided over them: gradients are parts of a sum too."""
        return move(x, "total", self._group)


class Group(NamedTuple):
    """The name of a process group, its number of ranks, and this rank."""

    name: str
    num_ranks: int
    rank: int


def sliced(x: Float[Tensor, "B T D"], group: Group) -> Float[Tensor, "B t D"]:
    """Keep this rank's slice of whole sequences."""
    num_tokens = x.shape[SEQUENCE] // group.num_ranks
    return x.narrow(SEQUENCE, group.rank * num_tokens, num_tokens).contiguous()


def gathered(x: Float[Tensor, "B t D"], group: Group) -> Float[Tensor, "B T D"]:
    """Put the slices of all ranks together, in order of ranks."""
    slices: Tensor = OPERATORS.wait_tensor(
        OPERATORS.all_gather_into_tensor(x.contiguous(), group.num_ranks, group.name)
    )
    return slices.view(group.num_ranks, *x.shape).transpose(0, SEQUENCE).flatten(SEQUENCE, 2)


def scattered(x: Float[Tensor, "B T D"], group: Group) -> Float[Tensor, "B t D"]:
    """Add up the parts of all ranks and return this rank's slice."""
    slices = x.unflatten(SEQUENCE, (group.num_ranks, -1)).transpose(0, SEQUENCE).contiguous()  # [R, B, t, D]
    return OPERATORS.wait_tensor(
        OPERATORS.reduce_scatter_tensor(slices.flatten(0, 1), "sum", group.num_ranks, group.name)
    )


def summed(x: Float[Tensor, "B T D"], group: Group) -> Float[Tensor, "B T D"]:
    """Add up the parts of all ranks."""
    return OPERATORS.wait_tensor(OPERATORS.all_reduce(x.contiguous(), "sum", group.name))


def _same(x: Tensor, group: Group) -> Tensor:
    del group
    return x.view_as(x)


# The move of values, and that of their gradients.
MOVES: Final = {
    "slice": (sliced, gathered),
    "gather": (gathered, scattered),
    "scatter": (scattered, gathered),
    "sum": (summed, _same),
    "total": (summed, summed),
    "share": (_same, summed),  # values alike on every rank; gradients are parts of a sum
}


def move(x: Tensor, kind: str, group: Group) -> Tensor:
    """Move values by one of `MOVES`, and their gradients back."""
    return _Move.apply(x, kind, *group)


class _Move(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, kind: str, name: str, num_ranks: int, rank: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.kind, ctx.name, ctx.num_ranks, ctx.rank = kind, name, num_ranks, rank
        return MOVES[kind][0](x, Group(name, num_ranks, rank))

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return MOVES[ctx.kind][1](gradient, Group(ctx.name, ctx.num_ranks, ctx.rank)), None, None, None, None


ROWS, COLUMNS = Shard(0), Shard(1)
Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@final
class LocalPart:
    """A rank's part of a layer's parameter as a plain tensor, taken out of the DTensor before the layer's block runs.

    The compiler keeps a DTensor's mesh for a recomputed block, and fails to (torch 2.13); plain tensors it knows.
    """

    def __init__(self, layer: nn.Module, parameter: str = "weight") -> None:
        self._layer, self._parameter = layer, parameter
        self.value = torch.empty(0)

    def take(self) -> None:
        """Take what FSDP2 has just gathered."""
        self.value = local_part(getattr(self._layer, self._parameter))


def take_parts(parts: Sequence[LocalPart], module: nn.Module, inputs: Any) -> None:
    """Take the parts before their block runs."""
    del module, inputs
    for part in parts:
        part.take()


@final
@dataclass(kw_only=True)
class TensorLayout:
    """The cuts: the order of the rows of fused matrices [E], and the parameters with gradients as parts of a sum.

    Both by the parameter's name in the model; a stack of matrices has its rows on axis 1. `cut` are all names of cut
    parameters.
    """

    regions: Regions
    row_orders: dict[str, tuple[int, Int[Tensor, " E"]]] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    _parts_of_block: list[LocalPart] = field(default_factory=list[LocalPart])

    @property
    def mesh(self) -> DeviceMesh:
        """Return the group's mesh."""
        return self.regions.mesh

    @property
    def num_ranks(self) -> int:
        """Return the ranks of a group."""
        return self.mesh.size()

    @property
    def rank(self) -> int:
        """Return this rank's place in its group."""
        return self.mesh.get_local_rank()

    def cut_rows(self, linear: nn.Module, name: str, *, parts: Sequence[int]) -> None:
        """Give each rank its share of the rows of each of the fused `parts`; inputs are whole, outputs its share."""
        layer, product = _linear(linear, name)
        rows = self._order(parts).to(layer.weight.device)
        if len(parts) > 1:
            self.row_orders[f"{name}.weight"] = 0, rows
        self._cut(layer, f"{name}.weight", layer.weight.detach()[rows], ROWS)
        of_rank, part = rows.chunk(self.num_ranks)[self.rank], self._part(layer, name)
        change = layer.adapter.of_part(rows=of_rank) if isinstance(layer, HasAdapter) else None

        def forward(input: Tensor) -> Tensor:  # noqa: A002  as torch calls it
            bias = _bias(layer)
            made = product(input, part.value, None if bias is None else bias[of_rank])  # its gradient a part
            return made if change is None else made + change(input)

        layer.forward = forward
        layer.out_features //= self.num_ranks

    def cut_columns(self, linear: nn.Module, name: str, *, adds_up: bool = True) -> None:
        """Give each rank its share of the columns: inputs are its share, outputs its slice of the sequence.

        Without `adds_up` outputs are parts of a sum.
        """
        layer, product = _linear(linear, name)
        self._cut(layer, f"{name}.weight", layer.weight.detach(), COLUMNS)
        part, width = self._part(layer, name), layer.in_features // self.num_ranks
        columns = slice(self.rank * width, (self.rank + 1) * width)
        change = layer.adapter.of_part(columns=columns) if isinstance(layer, HasAdapter) else None

        def forward(input: Tensor) -> Tensor:  # noqa: A002
            bias, made = _bias(layer), product(input, part.value, None)
            made = made if change is None else made + change(input)
            made = self.regions.sum_to_slice(made) if adds_up else made
            return made if bias is None else made + bias

        layer.forward = forward
        layer.in_features = width

    def cut_experts(self, experts: MixtureOfExperts, name: str) -> None:
        """Give each rank its share of the width of every expert; all ranks route alike.

        Outputs are this rank's slice of the sequence. The penalty is the same on all ranks, its gradient a part.
        """
        rows = self._order(experts.fused_rows["gate_up"]).to(experts.gate_up.device)
        self.row_orders[f"{name}.gate_up"] = 1, rows
        self._cut(experts, f"{name}.gate_up", experts.gate_up.detach()[:, rows], Shard(1))
        self._cut(experts, f"{name}.down", experts.down.detach(), Shard(2))
        of_rank, num_ranks = rows.chunk(self.num_ranks)[self.rank], self.num_ranks
        gate_up, down = LocalPart(experts, "gate_up"), LocalPart(experts, "down")
        self._parts_of_block += [gate_up, down]

        def matrices() -> ExpertMatrices:
            of_gate_up, of_down = experts.gate_up_bias, experts.down_bias  # of an expert group's rank its own
            return ExpertMatrices(
                gate_up.value,
                down.value,
                None if of_gate_up is None else local_part(of_gate_up)[:, of_rank],
                None if of_down is None else local_part(of_down) / num_ranks,
            )

        def moved(module: nn.Module, inputs: Any, made: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            del module, inputs
            mixed, penalty = made
            value = penalty.detach()
            return self.regions.sum_to_slice(mixed), value + (penalty - value) / num_ranks

        experts.matrices = matrices
        experts.register_forward_hook(moved)
        experts.feed_forward_width //= num_ranks

    def cut_vocabulary(self, table: nn.Embedding, name: str) -> None:
        """Give each rank its share of the rows of a table [V, D]; every rank gets every token's vector."""
        self._cut(table, f"{name}.weight", table.weight.detach(), ROWS)
        first_row = self.first_row(table.num_embeddings)

        def forward(input: Tensor) -> Tensor:  # noqa: A002
            weight = local_part(table.weight)
            row = input - first_row
            is_elsewhere = (row < 0) | (row >= len(weight))
            found = F.embedding(row.masked_fill(is_elsewhere, 0), weight)
            return self.regions.sum_to_whole(found.masked_fill(is_elsewhere.unsqueeze(-1), 0))

        table.forward = forward

    def cut_features(self, table: nn.Embedding, name: str) -> None:
        """Give each rank its share of the columns of a table, and of each token's vector."""
        self._cut(table, f"{name}.weight", table.weight.detach(), COLUMNS)

        def forward(input: Tensor) -> Tensor:  # noqa: A002
            return F.embedding(input, local_part(table.weight))

        table.forward = forward

    def share_vectors(self, layer: RecurrentLayer, parts: Sequence[Sequence[int]]) -> None:
        """Let a layer read its share of its fused vectors; they are whole on each rank, and their gradients parts."""
        whole: Callable[[], list[Any]] = layer.vectors
        shares = [self._order(widths).chunk(self.num_ranks)[self.rank] for widths in parts]

        def vectors() -> list[Any]:
            return [None if one is None else one[share] for one, share in zip(whole(), shares, strict=True)]

        layer.vectors = vectors

    def share_norm(self, norm: RMSNorm) -> None:
        """Take the root mean square over the features of all ranks: a number a token is added up, and its gradient."""
        num_features = norm.width

        def forward(x: Tensor) -> Tensor:
            mean = self.regions.total(x.float().square().sum(dim=-1, keepdim=True)) / num_features
            scale = norm.factor().chunk(self.num_ranks)[self.rank]
            return (x.float() * torch.rsqrt(mean + norm.eps) * scale).to(x.dtype)

        norm.forward = forward

    def cut_head(self, head: nn.Linear, name: str) -> None:
        """Give each rank its share of the rows of the output head, for a loss over shards."""
        self._cut(head, f"{name}.weight", head.weight.detach(), ROWS)

    def first_row(self, num_rows: int) -> int:
        """Return the first row of this rank's shard, as DTensor cuts: even shards but for the last ones."""
        return -(-num_rows // self.num_ranks) * self.rank

    def take_before(self, block: nn.Module) -> None:
        """Take the parts of the layers cut since the last call before this block runs, behind FSDP2's own hook."""
        parts, self._parts_of_block = self._parts_of_block, []
        eager: Any = torch.compiler.disable  # a graph that returns a weight gathered in fp8 fails backward (torch 2.13)
        block.register_forward_pre_hook(eager(partial(take_parts, parts)))

    def sum_parts(self, model: nn.Module) -> None:
        """Add up, in one message, the gradients of small parameters, from each rank's slice or heads."""
        parameters = [parameter for name, parameter in model.named_parameters() if name in self.parts]
        gradients = [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
        if not gradients:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self.mesh.get_group())
        for gradient, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def ordered(self, tensor: Any, name: str, *, by_rank: bool = False) -> Any:
        """Return a tensor of a fused matrix's rows in the order of the model, or of ranks; any other as it is."""
        found = next((rows for own, rows in self.row_orders.items() if name == own or name.endswith(f".{own}")), None)
        if found is None or not isinstance(tensor, Tensor):
            return tensor
        axis, order = found
        if tensor.ndim <= axis or tensor.shape[axis] != len(order):
            return tensor
        rows = order if by_rank else order.argsort()
        if not isinstance(tensor, DTensor):
            return tensor.index_select(axis, rows.to(tensor.device))
        whole: Tensor = tensor.detach().full_tensor()  # pyright: ignore[reportAttributeAccessIssue]  # lost by detach
        moved = whole.index_select(axis, rows.to(whole.device))
        return distribute_tensor(moved, tensor.device_mesh, tensor.placements, src_data_rank=None)

    def _part(self, layer: nn.Linear, name: str) -> LocalPart:
        sides = local_part(layer.weight).shape
        if isinstance(layer, HasProduct) and any(side % layer.multiple for side in sides):
            raise ConfigurationError(
                f"{name} is {sides[1]} x {sides[0]} on each of strategy.tensor_size={self.num_ranks} ranks, and its "
                f"format multiplies multiples of {layer.multiple}. Did you mean a smaller group, or "
                f"precision.skip=[{name}]?"
            )
        part = LocalPart(layer)
        self._parts_of_block.append(part)
        return part

    def _order(self, parts: Sequence[int]) -> Int[Tensor, " E"]:
        """Return the rows of fused parts by rank: each rank's share of each part."""
        whole = torch.arange(sum(parts)).split([*parts])
        return torch.cat([part.chunk(self.num_ranks)[rank] for rank in range(self.num_ranks) for part in whole])

    def _cut(self, module: nn.Module, name: str, values: Tensor, placement: Shard) -> None:
        """Keep this rank's part of values present on every rank: no communication."""
        own = name.rpartition(".")[2]
        parameter = module.get_parameter(own)
        placed = distribute_tensor(values.contiguous(), self.mesh, [placement], src_data_rank=None)
        module.register_parameter(own, nn.Parameter(placed, requires_grad=parameter.requires_grad))
        self.cut.add(name)


def share_smear(smear: Smear, *, rank: int) -> None:
    """Smear a rank's share of the dimensions, its input, by its share of the whole weight, whose gradient is a part."""

    def forward(x: Tensor, documents: Documents | None = None) -> Tensor:
        return smeared(x, smear.weight.split(x.shape[-1])[rank], documents)

    smear.forward = forward


def _linear(linear: nn.Module, name: str) -> tuple[nn.Linear, Product]:
    """Return a layer with its product: its own, or torch's."""
    if isinstance(linear, nn.Linear) and isinstance(linear, HasProduct):
        return linear, linear.product
    if type(linear) is not nn.Linear and not (isinstance(linear, nn.Linear) and isinstance(linear, HasAdapter)):
        raise ConfigurationError(
            f"{name} is a {type(linear).__name__}, which cannot be cut over a tensor group; use plain linear layers, "
            "or a strategy without tensor groups."
        )
    return linear, F.linear


def _bias(layer: nn.Linear) -> Tensor | None:
    return layer.bias
