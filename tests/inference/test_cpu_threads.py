from collections.abc import Generator

import pytest
import torch
from torch import nn

from lmtrain.inference.cpu_threads import BYTES_OF_A_THREAD, use_fitting_threads


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def model_of(num_bytes: int) -> nn.Module:
    return nn.Linear(num_bytes // 4, 1, bias=False)


@pytest.mark.parametrize(("size", "threads"), [(0.1, 1), (2.5, 2), (9.0, 4)])
def test_threads_grow_with_the_weights(size: float, threads: int) -> None:
    use_fitting_threads(model_of(round(size * BYTES_OF_A_THREAD)))
    assert torch.get_num_threads() == threads


def test_a_persons_number_and_other_devices_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        use_fitting_threads(model_of(4))
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    use_fitting_threads(model_of(4))
    assert torch.get_num_threads() == 4
