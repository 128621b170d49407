"""A step through the stages of a pipeline, by a schedule of torch, and passes without gradients.

Every rank of a pipeline reads the same rows, so that tokens, targets and documents are where they are needed, and
stages send each other hidden states and their gradients alone. torch.distributed.pipelining orders the passes of all
micro-batches, and leaves sums over tokens.
B batch, T tokens, D width.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, NamedTuple, cast, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn import Parameter
from typing_extensions import override

from lmtrain.accounting.model.memory import Pipeline, Schedule
from lmtrain.models.documents import Documents
from lmtrain.models.head import Loss, LossTotal
from lmtrain.models.stages import LayerStream, StagedModel
from lmtrain.parallel.gradients import add_up_in_fp32, global_norm, local_part, whole_tensor
from lmtrain.parallel.pipeline_parts import holders, keep

SCHEDULES: Final[dict[Schedule, Any]] = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
}
MicroBatch = tuple[Tensor, Tensor, Documents | None]
Sent = tuple[Tensor, ...]


class SentFormat(NamedTuple):
    """A sent tensor: one of the stream's `width`, or None for a single number."""

    dtype: torch.dtype
    width: int | None


@final
class PipelineRun:
    """The parts of a model on this rank, and what it does together with the other ranks of its pipeline."""

    def __init__(
        self,
        model: StagedModel,
        stages: dist.ProcessGroup,
        pipeline: Pipeline,
        *,
        layers: Sequence[range],
        context: Callable[[], AbstractContextManager[Any]],
        enter: Callable[[int], int] = int,
    ) -> None:
        """Drop the other ranks' parameters from the model; `stages` are the ranks of this pipeline.

        `layers` are those of each part, `context` is that of a forward pass in training. `enter` returns the tokens of
        a sequence that layers hand on, where ranks share it.
        """
        self.model, self.stages, self._pipeline = model, stages, pipeline
        self._layers, self._context, self._enter = layers, context, enter
        self._rank = stages.rank()
        self._parts_of = holders(model, layers)
        self._names = [name for name, _ in model.named_parameters()]
        self._width = model.output_head().weight.shape[1]
        self._owners = [pipeline.owner(part) for part in range(pipeline.num_parts)]
        self._own = [part for part, owner in enumerate(self._owners) if owner == self._rank]
        keep(model, frozenset(name for name in self._parts_of if self._rank in self._ranks_of(name)))
        self._logits = model.logits
        model.whole_step = self
        for name in ("features", "logits", "forward"):
            setattr(model, name, getattr(self, name))
        self._batches: Sequence[MicroBatch] = ()
        self._loss: Loss | None = None
        self._totals: list[LossTotal] = []
        self._formats: list[SentFormat] | None = None
        self._schedule: tuple[tuple[int, torch.Size], Any] | None = None

    def connect(self, copies: dist.ProcessGroup, *, num_slices: int) -> None:
        """Take the final parameters: sharded over `copies`, the ranks with the same layers, or the same on each.

        `num_slices` of these ranks share each sequence.
        """
        self._copies, model = copies, self.model
        shared = [(one, self._ranks_of(name)) for name, one in model.named_parameters()]
        self._shared = [(one, ranks) for one, ranks in shared if len(ranks) > 1]  # a tied table, on two stages
        self._counted_elsewhere = {id(one) for one, ranks in self._shared if self._rank != min(ranks)}
        self._num_averaged = copies.size() // num_slices if isinstance(model, FSDPModule) else 1
        for parameter in model.parameters():
            parameter.ranks_with_copies = copies  # pyright: ignore[reportAttributeAccessIssue]  # read by optim

    def run(self, batches: Sequence[MicroBatch], loss: Loss, *, scale: float) -> LossTotal:
        """Run a step's micro-batches forward and backward; see WholeStep."""
        self._batches, self._loss, self._totals = batches, loss, []
        numbers = torch.arange(len(batches))  # of the micro-batches, which every rank has
        schedule = self._scheduled(batches)
        self._reduce_in_backward(is_on=False)
        schedule.step(number=numbers, target=numbers, losses=[], return_outputs=False)
        self._reduce_shards()
        sums = torch.zeros(2, dtype=torch.float64, device=self._device)
        if self._is_last:
            sums = torch.stack([torch.stack([one.nats.double(), one.num_tokens.double()]) for one in self._totals]).sum(
                0
            )
        dist.broadcast(sums, group=self.stages, group_src=self._owners[-1])
        self._sum_gradients(scale)
        self._batches, self._totals = (), []
        return LossTotal(sums.new_zeros(()), sums[0], sums[1].long())

    def norm(self, parameters: Iterable[Parameter]) -> Tensor:
        """Return the 2-norm of the gradients of all stages, a tied table counted once: []."""
        squares = global_norm(one for one in parameters if id(one) not in self._counted_elsewhere).square()
        dist.all_reduce(squares, group=self.stages)
        return squares.sqrt()

    def sum_over_copies(self, sums: Tensor) -> Tensor:
        """Add up a tensor over the ranks with the same layers, in place."""
        dist.all_reduce(sums, group=self._copies)
        return sums

    def of_all_stages(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors of all stages, by their parameters' names in the whole model's order, whole."""
        own = {name: whole_tensor(one.detach()).cpu() for name, one in tensors.items() if one is not None}
        of_ranks: list[Any] = [None] * self.stages.size()
        dist.all_gather_object(of_ranks, own, group=self.stages)
        found = {name: tensor for of_rank in of_ranks for name, tensor in of_rank.items()}
        return {name: found[name] for name in self._names if name in found}

    def features(self, tokens: Tensor, documents: Documents | None = None) -> tuple[Tensor, None]:
        """Run the layers without gradients: hidden states [B, T, D] on every rank, and no penalty."""
        with torch.no_grad():
            return self._from_last(self._hidden(tokens, documents)), None

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the next token: [B, T, D] -> [B, T, V] on every rank."""
        with torch.no_grad():
            return self._from_last(self._logits(hidden) if self._is_last else None)

    def _from_last(self, found: Tensor | None) -> Tensor:
        """Return the tensor found on the rank of the last part, on every rank."""
        facts: list[Any] = [None if found is None else (found.shape, found.dtype)]
        dist.broadcast_object_list(facts, group=self.stages, group_src=self._owners[-1])
        shape, dtype = facts[0]
        made = torch.empty(shape, dtype=dtype, device=self._device) if found is None else found.contiguous()
        dist.broadcast(made, group=self.stages, group_src=self._owners[-1])
        return made

    def forward(
        self,
        tokens: Tensor | Callable[[], Any],
        targets: Tensor | None = None,
        loss: Loss | None = None,
        documents: Documents | None = None,
    ) -> Tensor | LossTotal:
        """Score without gradients, as the whole model does: sums, or logits, on every rank.

        Within FSDP2's hooks of a forward pass, which training has through here too.
        """
        if callable(tokens):
            return tokens()
        if targets is None or loss is None:
            return self.logits(self.features(tokens, documents)[0])
        with torch.no_grad():
            hidden = self._hidden(tokens, documents)
            sums = torch.zeros(3, dtype=torch.float64, device=self._device)
            if hidden is not None:
                total = self.model.score(self.model.output_head(), hidden, targets, loss)
                sums = torch.stack([one.double() for one in total])
            dist.broadcast(sums, group=self.stages, group_src=self._owners[-1])
        return LossTotal(sums[0].float(), sums[1], sums[2].long())

    def of_part(self, part: int, received: Sent, number: Tensor) -> Tensor | Sent:
        """Return what a part sends on for a micro-batch, or a number [] with the gradient of its objective."""
        tokens, targets, documents = self._batches[int(number)]
        with self._context():
            made = self._run_part(part, received, tokens, documents)
            if part < len(self._layers) - 1:
                return self._packed(made, received)
            hidden, penalty = self.model.end(made)
            assert self._loss is not None
            given = hidden.detach().requires_grad_()
            total = self.model.score(self.model.output_head(), given, targets, self._loss)
        # At once: a loss frees what it kept, where a schedule may ask it twice.
        total.objective.backward()
        add_up_in_fp32(self.model)
        self._totals.append(LossTotal(*(one.detach() for one in total)))
        back = (hidden * cast("Tensor", given.grad)).sum()  # whose gradient is the loss's
        return back if penalty is None else back + penalty

    def parameters_of(self, part: int) -> Iterator[Parameter]:
        """Yield the parameters of a part on this rank."""
        return (parameter for name, parameter in self.model.named_parameters() if part in self._parts_of[name])

    @property
    def _is_last(self) -> bool:
        return self._owners[-1] == self._rank

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _ranks_of(self, name: str) -> set[int]:
        return {self._owners[part] for part in self._parts_of[name]}

    def _run_part(self, part: int, received: Sent, tokens: Tensor, documents: Documents | None) -> LayerStream:
        self._enter(tokens.shape[1])
        if part == 0:
            stream = self.model.begin(tokens, documents)
        else:
            given: dict[str, Any] = dict(zip(self.model.handed_on, received, strict=True))
            stream = LayerStream(**{"embedded": given["x"], "middle": given["x"], **given})
        return self.model.through(stream, self._layers[part], tokens, documents)

    def _packed(self, stream: LayerStream, received: Sent) -> Sent:
        """Return the tensors to send, each by itself: torch detaches them in place."""
        packed: list[Tensor] = []
        for name in self.model.handed_on:
            tensor: Tensor | None = getattr(stream, name)
            tensor = stream.x.new_zeros((), dtype=torch.float32) if tensor is None else tensor
            is_known = any(tensor is other for other in (*packed, *received))
            packed.append(tensor.clone() if is_known or tensor._is_view() else tensor)  # noqa: SLF001  # pyright: ignore
        return tuple(packed)

    def _hidden(self, tokens: Tensor, documents: Documents | None) -> Tensor | None:
        """Go through the parts one by one; return the hidden states on the rank of the last one."""
        formats, sent = self._formats_of(tokens), cast(Sent, ())
        last = len(self._owners) - 1
        for part in self._own:
            if part and self._owners[part - 1] != self._rank:
                sent = tuple(self._empty(one, tokens) for one in formats)
                for tensor in sent:
                    dist.recv(tensor, group=self.stages, group_src=self._owners[part - 1])
            stream = self._run_part(part, sent, tokens, documents)
            if part == last:
                return self.model.end(stream)[0].contiguous()
            sent = tuple(tensor.contiguous() for tensor in self._packed(stream, ()))
            if self._owners[part + 1] != self._rank:
                for tensor in sent:
                    dist.send(tensor, group=self.stages, group_dst=self._owners[part + 1])
        return None

    def _formats_of(self, tokens: Tensor) -> list[SentFormat]:
        """Return the formats of sent tensors, the same for every part and step, known to the first rank."""
        if self._formats is None:
            found: list[Any] = [None]
            if self._rank == self._owners[0]:
                with torch.no_grad():
                    packed = self._packed(self.model.begin(tokens[:1, :1], None), ())
                found = [[SentFormat(one.dtype, self._width if one.ndim else None) for one in packed]]
            dist.broadcast_object_list(found, group=self.stages, group_src=self._owners[0])
            self._formats = found[0]
        assert self._formats is not None
        return self._formats

    def _empty(self, sent: SentFormat, tokens: Tensor) -> Tensor:
        shape = () if sent.width is None else (len(tokens), self._enter(tokens.shape[1]), sent.width)
        return torch.empty(shape, dtype=sent.dtype, device=self._device)

    def _scheduled(self, batches: Sequence[MicroBatch]) -> Any:
        """Return the schedule for micro-batches of this number and shape."""
        tokens = batches[0][0]
        asked = (len(batches), tokens.shape)
        if self._schedule is None or self._schedule[0] != asked:
            with self._context():
                formats = self.model(partial(self._formats_of, tokens))
            like = tuple(self._empty(one, tokens).to("meta").requires_grad_() for one in formats)
            made = [self._stage(part, like) for part in self._own]
            kind = SCHEDULES[self._pipeline.schedule_run]
            is_single = issubclass(kind, schedules.PipelineScheduleSingle)
            built = kind(
                made[0] if is_single else made, len(batches), loss_fn=lambda output, _: output, scale_grads=False
            )
            self._schedule = asked, built
        return self._schedule[1]

    def _stage(self, part: int, like: Sent) -> PipelineStage:
        last = len(self._owners) - 1
        objective = torch.empty((), device="meta", requires_grad=True)
        return PipelineStage(
            StagePart(self, part),
            part,
            len(self._owners),
            self._device,
            input_args=like if part else (),
            output_args=like if part < last else objective,
            group=self.stages,
        )

    def _reduce_in_backward(self, *, is_on: bool) -> None:
        """Let FSDP2 reduce gradients and free weights at the end of a backward pass, or keep both for the next."""
        if isinstance(self.model, FSDPModule):
            self.model.set_is_last_backward(is_on)
            self.model.set_requires_gradient_sync(is_on)
            self.model.set_reshard_after_backward(is_on)

    def _reduce_shards(self) -> None:
        """Average gradients over the shards' ranks, at the end of a backward pass through nothing: the step's last.

        One without reduction goes before: a pass of weights' gradients alone leaves blocks that FSDP2 takes for done.
        """
        if isinstance(self.model, FSDPModule):
            for is_last in (False, True):
                self._reduce_in_backward(is_on=is_last)
                nothing = torch.zeros((), device=self._device, requires_grad=True)
                self.model(nothing.clone).backward()

    def _sum_gradients(self, scale: float) -> None:
        """Add up gradients: of a tied table over its two stages, then of everything over the copies."""
        gradients = [local_part(_gradient(parameter)) for parameter in self.model.parameters()]
        scale *= self._num_averaged
        torch._foreach_mul_(gradients, scale)  # pyright: ignore[reportPrivateUsage]  # as in torch's clipping
        for parameter, ranks in self._shared:
            (other,) = ranks - {self._rank}
            mine = local_part(_gradient(parameter))
            theirs = torch.empty_like(mine)
            operations = [
                dist.P2POp(dist.isend, mine, group=self.stages, group_peer=other),
                dist.P2POp(dist.irecv, theirs, group=self.stages, group_peer=other),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            mine += theirs
        if self._copies.size() > 1 and not isinstance(self.model, FSDPModule):
            for work in [dist.all_reduce(one, group=self._copies, async_op=True) for one in gradients]:
                assert work is not None
                work.wait()


class StagePart(nn.Module):
    """A part of the model, as torch's stages take one: a module that knows its parameters."""

    def __init__(self, run: PipelineRun, part: int) -> None:
        super().__init__()
        self._run = [run]  # in a list: its model is not a child
        self._part = part

    @override
    def forward(self, *received: Tensor, number: Tensor) -> Tensor | Sent:
        run = self._run[0]
        return run.model(partial(run.of_part, self._part, received, number))

    @override
    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:  # as torch has it
        return self._run[0].parameters_of(self._part)


def _gradient(parameter: Parameter) -> Tensor:
    """Return a parameter's gradient, zeros where no token of the step reached it."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
