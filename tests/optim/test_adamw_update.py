"""One update by torch's function, of all at once and of each in fp32."""

import torch
from torch import nn

from lmtrain.optim.adamw_update import noise_of_step, start_state, update, update_rounded

GROUP = {"lr": 0.1, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0, "fused": False}


def parameter(dtype: torch.dtype = torch.float32) -> nn.Parameter:
    made = nn.Parameter(torch.ones(64, dtype=dtype))
    made.grad = torch.full_like(made, 0.25)
    return made


def test_the_first_step_moves_by_the_learning_rate() -> None:
    one = parameter()
    state = start_state(one, fused=False)
    update([one], [state], GROUP)
    torch.testing.assert_close(one.detach(), torch.full((64,), 0.9))
    assert state["step"] == 1


def test_each_in_fp32_gives_the_same_where_nothing_is_rounded() -> None:
    together, apart = parameter(), parameter()
    update([together], [start_state(together, fused=False)], GROUP)
    noise = noise_of_step(0, group=0, device=apart.device)
    update_rounded([apart], [start_state(apart, fused=False)], GROUP, noise=noise)
    assert torch.equal(together, apart)


def test_moments_may_have_a_format_of_their_own() -> None:
    one = parameter()
    state = start_state(one, fused=True, moments_dtype=torch.bfloat16)
    update_rounded([one], [state], GROUP, noise=noise_of_step(0, group=0, device=one.device))
    assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.bfloat16
    torch.testing.assert_close(one.detach(), torch.full((64,), 0.9))
