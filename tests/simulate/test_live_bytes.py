import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lmtrain.simulate.live_memory import LiveBytes


def made():
    kept = torch.zeros(1000)
    view = kept[:10]
    torch.zeros(4000)
    copy = view.clone()
    return kept, copy


def test_storages_count_once_while_they_live():
    with LiveBytes() as live:
        kept = made()
        assert live.now == 4000 + 40
        assert live.peak == 4000 + 16_000
        del kept
        assert live.now == 0


def test_fake_tensors_count_as_real_ones():
    with FakeTensorMode(), LiveBytes() as live:
        kept = made()
    assert (live.now, live.peak) == (4040, 20_000)
    del kept
