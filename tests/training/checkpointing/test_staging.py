import torch
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.training.checkpointing.staging import SharedMemory, num_state_bytes, restore, stage
from lmtrain.training.side_stream import NoStream


def round_trip(thing):
    memory = SharedMemory()
    staged = stage(thing, memory=memory, side=NoStream()).staged
    return restore(staged, memory=memory)


DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint16, torch.bool, torch.complex64]


@given(sizes=st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=5), dtype=st.sampled_from(DTYPES))
def test_tensors_come_back_to_the_last_bit(sizes, dtype):
    torch.manual_seed(0)
    tensors = [torch.randint(0, 255, (*size, 8), dtype=torch.uint8).float().to(dtype) for size in sizes]
    for tensor, back in zip(tensors, round_trip(tensors), strict=True):
        assert (back.dtype, back.shape) == (dtype, tensor.shape)
        assert back.untyped_storage().tolist() == tensor.untyped_storage().tolist()


def test_tensors_that_share_memory_share_it_again_and_take_it_once():
    whole = torch.arange(1000.0)
    memory = SharedMemory()
    staged = stage([whole, whole[10:20], whole.view(10, 100).T], memory=memory, side=NoStream()).staged
    first, part, turned = restore(staged, memory=memory)
    first[10] = -1
    assert (part[0], turned[10, 0]) == (-1, -1)
    assert turned.stride() == (1, 100)
    assert staged.pickle_start == 4032  # 4000 bytes, aligned


def test_quantized_state_comes_back():
    from torchao.optim.subclass_8bit import OptimState8bit

    state = OptimState8bit.zeros((64, 64), block_size=256)
    state.copy_(torch.randn(64, 64))
    assert torch.equal(round_trip(state).dequantize(), state.dequantize())


def test_a_copy_does_not_follow_what_happens_to_the_original():
    memory, weight = SharedMemory(), torch.ones(5)
    staged = stage(weight, memory=memory, side=NoStream()).staged
    weight.zero_()
    assert restore(staged, memory=memory).tolist() == [1.0] * 5


def test_the_bytes_of_quantized_state_are_those_of_its_parts():
    from torchao.optim.subclass_8bit import OptimState8bit

    state = OptimState8bit.zeros((64, 64), block_size=256)
    assert num_state_bytes(state) == 64 * 64 + 16 * 4 + 256 * 4
