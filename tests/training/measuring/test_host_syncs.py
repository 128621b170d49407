import torch

from lmtrain.training.step_timer import HostSyncs


def counted(body) -> int:
    syncs = HostSyncs()
    syncs.start()
    body()
    return syncs.stop()


def test_every_way_to_ask_for_a_value_counts_and_a_step_of_fused_adamw_does_not():
    value = torch.ones((), requires_grad=True)
    optimizer = torch.optim.AdamW([value], fused=True)

    def step() -> None:
        (value * value).backward()
        optimizer.step()

    assert counted(step) == 0
    assert counted(lambda: (value.item(), float(value.detach()), bool(value > 0))) == 3
    assert counted(lambda: value.detach().tolist()) == 1
    assert counted(lambda: torch.arange(3).tolist()) == 0, "indices are the host's own"
