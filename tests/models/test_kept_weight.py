import torch

from lmtrain.models.head import kept_weight


def test_the_copy_goes_forward_and_the_master_gets_the_gradient_in_its_own_format():
    master = torch.tensor([1.0, 1 + 2**-10], requires_grad=True)
    copy = torch.tensor([1.0, 1.0], dtype=torch.bfloat16)
    out = kept_weight(master, copy)
    assert out.dtype == torch.bfloat16
    assert out.tolist() == [1.0, 1.0]
    (out * torch.tensor([3.0, 5.0], dtype=torch.bfloat16)).sum().backward()
    assert master.grad is not None
    assert master.grad.dtype == torch.float32
    assert master.grad.tolist() == [3.0, 5.0]
