"""What an optimizer says that it keeps is what the tensors of its state sum up to, for every option."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lmtrain.accounting.model.memory import TrainedParameters, state_bytes
from lmtrain.models.attention.sdpa import sdpa
from lmtrain.models.llama import Llama
from lmtrain.simulate.live_memory import LiveBytes
from tests import facts
from tests.optim.options import OPTIONS, OWN, build

# A hidden matrix that is tall and one that is wide, a table, an untied head and a norm.
SHAPES = {"tall": (320, 64), "wide": (64, 512), "embedding": (512, 64), "head": (512, 64), "norm": (64,)}
NUM_VALUES = {name: torch.Size(shape).numel() for name, shape in SHAPES.items()}
PARAMETERS = TrainedParameters(
    num_total=sum(NUM_VALUES.values()),
    num_hidden_matrix=NUM_VALUES["tall"] + NUM_VALUES["wide"],
    num_largest_block=0,
    num_outside_blocks=0,
    num_vector=NUM_VALUES["norm"],
    num_edge=sum(sum(shape) for shape in SHAPES.values() if len(shape) == 2),
    num_long_edge=320 + 512,
)
SETTINGS = [(option, {}) for option in OPTIONS] + [("adamw", {"moments": "bf16"}), ("muon", {"row_beta": None})]
TABLE_BYTES = 1024  # of 8-bit state: 256 fp32 values for each tensor, whatever its size


def model() -> nn.Module:
    made = nn.Module()
    made.blocks = nn.ModuleList([nn.Linear(64, 320, bias=False), nn.Linear(512, 64, bias=False)])
    made.embedding, made.head = nn.Embedding(512, 64), nn.Linear(64, 512, bias=False)
    made.norm = nn.LayerNorm(64, bias=False)
    return made


def plain_tensors(value: Tensor) -> list[Tensor]:
    """Return what a tensor is made of: codes, scales and a table where it is quantized."""
    if not is_traceable_wrapper_subclass(value):
        return [value]
    names, _ = value.__tensor_flatten__()
    return [part for name in names for part in plain_tensors(getattr(value, name))]


def measured_bytes(option: str, settings: dict[str, object], dtype: torch.dtype) -> int:
    """Take a step and add up the bytes of all state but the step counts and look-up tables."""
    trained = model().to(dtype)
    optimizer = build(option, trained, **settings)
    for parameter in trained.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    tensors = [
        part
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.numel() > 1
        for part in plain_tensors(value)
    ]
    return sum(part.nbytes for part in tensors if not (part.nbytes == TABLE_BYTES and part.numel() == 256))


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "fp32"), (torch.bfloat16, "bf16_true")])
@pytest.mark.parametrize(
    ("option", "settings"),
    [
        pytest.param(*pair, id="-".join([pair[0], *pair[1]]), marks=[pytest.mark.slow] * (pair[0] == "adamw_8bit"))
        for pair in SETTINGS
    ],
)
def test_what_is_said_equals_the_measured_sum_of_state(
    option: str, settings: dict[str, object], dtype: torch.dtype, precision: str
) -> None:
    state = facts.optimizer(option, **settings).state
    expected = state_bytes(PARAMETERS, precision=facts.precision(precision).bytes_of, optimizer=state)
    with torch.compiler.set_stance("force_eager"):  # which state there is does not depend on a compiled step
        assert measured_bytes(option, settings, dtype) == expected


def llama() -> Llama:
    trained = Llama(
        width=64, num_layers=6, num_heads=4, num_kv_heads=2, feed_forward_width=192, vocab_size=128,
        max_context_tokens=8, attention=sdpa,
    )  # fmt: skip
    trained.initialize_weights(torch.Generator().manual_seed(0))
    return trained


def step_peak(trained: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the most bytes at once of a step, beside weights, gradients and state."""
    for parameter in trained.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # makes its state
    known = [*trained.parameters(), *(one.grad for one in trained.parameters() if one.grad is not None)]
    known += [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    with LiveBytes(known) as live:
        optimizer.step()
    return live.peak


@pytest.mark.parametrize("option", [name for name in OWN if name != "adamw_8bit"])
def test_the_temporaries_of_a_step_are_no_more_than_is_said_beside_those_of_one_tensor(option: str) -> None:
    trained = llama()
    peak = step_peak(trained, build(option, trained))
    num_hidden = sum(one.numel() for one in trained.blocks.parameters() if one.ndim > 1)
    largest = max(parameter.nbytes for parameter in trained.parameters())
    state = facts.optimizer(option).state
    said = state.step_bytes * num_hidden + (state.matrix_work.num_bytes(num_hidden) if state.matrix_work else 0)
    assert 0.8 * said <= peak <= said + 2.1 * largest
