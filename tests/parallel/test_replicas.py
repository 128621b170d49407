import torch

from lmtrain.parallel.rank_reports import bit_sums, part_of, replica_groups


def test_one_flipped_bit_of_any_format_changes_the_sum_of_its_tensor_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    formats = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
    tensors = [torch.randn(5, 7, generator=generator).to(dtype) for dtype in formats]
    before = bit_sums(tensors)
    for at, tensor in enumerate(tensors):
        integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        for bit in (0, 8 * tensor.element_size() - 2):
            tensor.view(integers)[3, 2] ^= 1 << bit
            assert (bit_sums(tensors) != before).tolist() == [other == at for other in range(len(tensors))]
            tensor.view(integers)[3, 2] ^= 1 << bit
    assert torch.equal(bit_sums(tensors), before)


def test_no_number_has_bits_too() -> None:
    one = torch.tensor([float("nan"), 1.0])
    assert torch.equal(bit_sums([one]), bit_sums([one.clone()]))


def test_ranks_with_the_same_part_are_copies_and_a_part_of_one_rank_alone_is_none() -> None:
    assert replica_groups(["a", "b", "a", "b", "c"]) == [[0, 2], [1, 3]]
    assert replica_groups(["a"]) == []
    assert part_of([torch.zeros(2)]) == ((),)
