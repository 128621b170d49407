import pytest
import torch

from lmtrain.models.attention.base import Prepared, document_borders, is_cut, mask_of, prepare_masks, seen_tokens

CPU = torch.device("cpu")


def test_mask_counts_the_token_itself():
    mask = seen_tokens(5, window_tokens=2, device=CPU)
    assert mask.sum(dim=1).tolist() == [1, 2, 2, 2, 2]


def test_documents_do_not_see_each_other():
    documents = torch.tensor([[0, 0, 1, 1], [0, 1, 2, 2]])
    mask = seen_tokens(4, window_tokens=None, device=CPU, documents=documents)
    assert mask.shape == (2, 1, 4, 4)
    assert mask[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert mask[1, 0].int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize(("window_tokens", "expected"), [(None, False), (8, False), (9, False), (7, True)])
def test_a_window_as_long_as_the_context_cuts_nothing(window_tokens, expected):
    assert is_cut(8, window_tokens) is expected


def test_nothing_is_prepared_where_the_triangle_does():
    assert prepare_masks(None, num_tokens=8, windows=(None, 8), device=CPU) is None
    assert mask_of(None, num_tokens=8, window_tokens=8, device=CPU) is None


def test_each_window_is_prepared_once_and_found_again():
    prepared = prepare_masks(None, num_tokens=8, windows=(None, 3), device=CPU)
    assert isinstance(prepared, Prepared)
    assert mask_of(prepared, num_tokens=8, window_tokens=None, device=CPU) is None
    assert mask_of(prepared, num_tokens=8, window_tokens=3, device=CPU) is prepared.parts[3]


def test_a_window_that_was_not_prepared_is_no_silent_triangle():
    prepared = prepare_masks(torch.zeros(1, 8), num_tokens=8, windows=(None,), device=CPU)
    with pytest.raises(KeyError):
        mask_of(prepared, num_tokens=8, window_tokens=3, device=CPU)


def test_borders_are_where_documents_begin_when_rows_lie_end_to_end():
    documents = torch.tensor([[0, 0, 1, 2], [0, 1, 1, 1]], dtype=torch.int32)
    borders = document_borders(documents, max_documents=3)
    assert borders.dtype == torch.int32
    assert borders.tolist() == [0, 2, 3, 4, 5, 8, 8]


def test_borders_of_full_rows_use_all_room():
    documents = torch.arange(4).expand(2, 4)
    assert document_borders(documents, max_documents=4).tolist() == list(range(9))


def test_rows_share_room_and_more_documents_than_that_are_refused():
    documents = torch.tensor([[0, 1, 2], [0, 0, 0]])
    assert document_borders(documents, max_documents=2).tolist() == [0, 1, 2, 3, 6]
    with pytest.raises(RuntimeError, match=r"over 1 documents a row: raise attention\.max_documents_per_row"):
        document_borders(documents, max_documents=1)
