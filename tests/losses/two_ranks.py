"""One of two ranks that score a tiny Llama, replicated or sharded, with the plain and the chunked loss."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.llama import Llama
from lmtrain.parallel.mesh import RankGroups, mesh_facts, shard_blocks

LOSSES = (CrossEntropy(z_loss_weight=0.01), ChunkedCrossEntropy(z_loss_weight=0.01, chunk_tokens=3))
VOCAB_SIZE = 61


def build(*, tied: bool) -> Llama:
    dimensions = {"width": 16, "num_layers": 2, "num_heads": 2, "feed_forward_width": 32, "max_context_tokens": 16}
    model = Llama(**dimensions, vocab_size=VOCAB_SIZE, tie_embeddings=tied, logit_soft_cap=10.0)
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model


def tokens_of(rank: int) -> torch.Tensor:
    return torch.randint(VOCAB_SIZE, (2, 13), generator=torch.Generator().manual_seed(rank))


def gradients(model, tokens: torch.Tensor, loss) -> list[torch.Tensor]:
    model.zero_grad(set_to_none=True)
    for _ in range(2):  # as in accumulation, where the second backward pass adds to the first one's
        model(tokens[:, :-1], tokens[:, 1:], loss).objective.mul(0.5).backward()
    found = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None for gradient in found)
    return [gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone() for gradient in found]


def alone(*, tied: bool) -> list[torch.Tensor]:
    """Return the mean over both ranks' tokens that one process computes with the plain loss."""
    model = build(tied=tied)
    parts = [gradients(model, tokens_of(rank), LOSSES[0]) for rank in (0, 1)]
    return [(first + second) / 2 for first, second in zip(*parts, strict=True)]


def replicated(model: Llama) -> torch.nn.Module:
    return DistributedDataParallel(model)


def sharded(model: Llama, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("data_parallel",))
    return shard_blocks(
        model, RankGroups(mesh_facts(option="fsdp"), mesh), spread=mesh_facts(option="fsdp"), compute_dtype=dtype
    )


def main(rank: int) -> None:
    for tied in (False, True):
        expected = alone(tied=tied)
        for spread in (replicated, sharded):
            model = spread(build(tied=tied))
            for loss in LOSSES:
                for gradient, correct in zip(gradients(model, tokens_of(rank), loss), expected, strict=True):
                    torch.testing.assert_close(gradient, correct, rtol=1e-4, atol=1e-5)
        model = sharded(build(tied=tied), torch.bfloat16)
        plain, chunked = (gradients(model, tokens_of(rank), loss) for loss in LOSSES)
        for gradient, correct in zip(chunked, plain, strict=True):
            assert (gradient - correct).norm() <= 0.02 * correct.norm()  # bf16 rounds at other places
