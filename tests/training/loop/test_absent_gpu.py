import pytest
import torch

from lmtrain.training.trainer import make_trainer


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU is meant")
def test_no_step_looks_for_a_gpu_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # so that it is put back afterwards
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.AdamW([weight], fused=True)
    make_trainer(strategy="auto", precision="32-true", accelerator="cpu", folder=tmp_path)
    monkeypatch.setattr("ctypes.CDLL", None)  # a library loaded from here on is a TypeError
    optimizer.step()
    assert not torch.cuda.is_available()
