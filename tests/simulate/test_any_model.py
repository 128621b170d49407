"""Plans of modules that are not ours, against figures counted by hand."""

import re

import pytest
import torch
from torch import nn

import lmtrain
from lmtrain.errors import ConfigurationError
from lmtrain.simulate.any_model import Fit, plan_module

WIDTH, VOCAB, LAYERS, CONTEXT = 64, 1000, 2, 128


class Foreign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, dropout=0.0) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.table(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def test_a_foreign_module_is_counted_as_palm_counts_it() -> None:
    model = Foreign()
    told = plan_module(model, batch=(4, CONTEXT), tokens=10_000, device="NVIDIA H100 80GB HBM3")
    matmul = VOCAB * WIDTH + LAYERS * 12 * WIDTH**2
    total = sum(one.numel() for one in model.parameters())
    assert told["parameters"]["total"] == total
    assert told["parameters"]["embedding"] == VOCAB * WIDTH
    assert told["parameters"]["matmul"] == matmul
    assert told["flops_per_token"]["palm"] == 6 * matmul + 12 * LAYERS * WIDTH * CONTEXT
    assert told["flops_per_token"]["six_n"] == 6 * total
    assert told["horizon"]["steps"] == 20
    assert told["memory"]["fits"] is True
    assert told["time"]["hours"] > 0


@pytest.mark.parametrize(
    ("optimizer", "values"), [(torch.optim.AdamW, 2), (torch.optim.SGD, 0), (torch.optim.Adagrad, 1)]
)
def test_state_is_what_the_optimizer_keeps(optimizer: type[torch.optim.Optimizer], values: int) -> None:
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))
    held = plan_module(model, batch=(2, 16), optimizer=optimizer)["memory"]["per_device_bytes"]
    assert held["weights"] == held["gradients"] == 4 * sum(one.numel() for one in model.parameters())
    assert held["optimizer"] == pytest.approx(values * held["weights"], abs=64)


@pytest.mark.parametrize("form", ["class", "instance", "function", "name"])
def test_an_optimizer_that_reads_values_keeps_what_a_real_step_allocates(form: str) -> None:
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))
    kind = torch.optim.Adafactor
    made = {"class": kind, "instance": kind(model.parameters()), "function": lambda of: kind(of), "name": "adafactor"}
    planned = plan_module(model, batch=(2, 16), optimizer=made[form])
    model(torch.zeros(2, 3).long()).sum().backward()
    real = kind(model.parameters())
    real.step()
    allocated = sum(value.nbytes for state in real.state.values() for value in state.values() if torch.is_tensor(value))
    assert planned["memory"]["per_device_bytes"]["optimizer"] == allocated
    assert planned["advice"] == []


def test_an_optimizer_that_cannot_step_is_named() -> None:
    planned = plan_module(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)), batch=(2, 3), optimizer="sparseadam")
    assert "SparseAdam does not support dense gradients" in planned["advice"][0]


def test_a_step_fits_a_device_or_the_nearest_change_does() -> None:
    model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 1_000_000))

    def asked(sequences: int, device: str = "NVIDIA L4") -> Fit:
        return lmtrain.fits(model, batch=(sequences, 1024), optimizer="sgd", device=device)

    assert asked(1)
    assert asked(1).change is None
    found = asked(64)
    assert not found
    assert found.num_bytes > found.device_bytes == 24_000_000_000
    most = int(re.fullmatch(r"batch=\((\d+), 1024\)", found.change or "")[1])  # pyright: ignore[reportOptionalSubscript]
    assert asked(most)
    assert not asked(most + 1)
    with pytest.raises(ConfigurationError, match=r"must name one device .*, got H100, which is NVIDIA H100 80GB"):
        asked(1, "H100")


def test_a_forward_pass_that_fails_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert "forward pass failed" in plan_module(nn.Linear(5, 5), batch=(8, 128))["advice"][0]
    assert capfd.readouterr() == ("", "")


def test_a_forward_pass_that_reads_values_falls_back_to_six_n() -> None:
    class Reads(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
            return super().forward(input.float()[:, :4] * float(input.sum().item()))

    told = plan_module(Reads(4, 4), batch=(1, 8))
    assert told["flops_per_token"]["palm"] == 6 * 20
    assert "forward pass failed" in told["advice"][0]
