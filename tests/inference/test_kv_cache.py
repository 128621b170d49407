from dataclasses import replace

import torch

from lmtrain.inference import kv_cache
from lmtrain.inference.joint_texts import JointPass
from lmtrain.inference.kv_cache import KVCache, Span


def test_stores_grow_and_keep_what_they_hold(monkeypatch):
    monkeypatch.setattr(kv_cache, "FIRST_BYTES", 1)
    cache = KVCache(block_tokens=2, device=torch.device("cpu"))
    k = torch.arange(6.0).view(1, 3, 1, 2)
    cache.pairs(0, k, num_blocks=1).write_one(1, k, -k)
    cache.lasts(0, (3,), k, num_blocks=2)[1] = 7.0
    grown, lasts = cache.pairs(0, k, num_blocks=3), cache.lasts(0, (3,), k, num_blocks=3)
    assert grown.rows.shape == (6, 2, 3, 2)
    assert torch.equal(grown.read(Span(1, 1)), torch.stack((k, -k)))
    assert lasts.tolist() == [[0.0] * 3, [7.0] * 3, [0.0] * 3, [0.0] * 3]


def test_tokens_are_read_where_they_were_written_whether_end_to_end_or_not():
    cache = KVCache(block_tokens=2, device=torch.device("cpu"))
    k, v = torch.randn(2, 1, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    pairs = cache.pairs(0, k, num_blocks=4)
    pairs.write(torch.tensor([6, 7, 2, 3]), k, v)  # blocks 3 and 1
    whole = pairs.read(Span(0, 4, torch.tensor([3, 1])))
    assert torch.equal(whole, torch.stack((k, v)))
    assert torch.equal(pairs.read(Span(1, 3, torch.tensor([3, 1]))), whole[:, :, :, 1:])
    assert torch.equal(pairs.read(Span(6, 2)), whole[:, :, :, :2])


def test_a_copy_of_texts_side_by_side_gains_a_token_of_each():
    cache = KVCache(block_tokens=2, device=torch.device("cpu"))
    k, v = torch.randn(2, 1, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    pairs = cache.pairs(0, k, num_blocks=4)
    pairs.write(torch.tensor([6, 7, 2, 3]), k, v)  # blocks 3 and 1
    table, rows = torch.tensor([[3, 1], [1, 3]]), torch.tensor([1, 6])
    joint = JointPass(3, 6, True, torch.tensor([0, 1]), table, rows, 4, None)
    texts = cache.copy(0, pairs, joint).read(2, 4)  # [2, Hkv, P, S, K]
    whole = torch.stack((k[0], v[0]))
    assert torch.equal(texts[:, :, 0], whole)
    assert torch.equal(texts[:, :, 1, :2], whole[:, :, 2:])
    copy = cache.copy(0, pairs, replace(joint, is_new=False, places=torch.tensor([2]), table=torch.tensor([[3]])))
    copy.write(rows, k[:, :, :2], v[:, :, :2])
    assert torch.equal(copy.read(3, 2)[:, :, 0, 1], whole[:, :, 0])
    assert torch.equal(copy.read(3, 2)[:, :, 1, 0], whole[:, :, 1])
    assert torch.equal(copy.read(3, 2)[:, :, 2], whole[:, :, :2])  # copied beside those in their places
    assert torch.equal(pairs.read(Span(0, 4, table[0])), whole[:, None])  # the store is another memory
