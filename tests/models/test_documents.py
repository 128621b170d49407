import torch

from lmtrain.models.documents import EarlierTokens, num_positions, starts_document, token_positions

DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2], [0] * 9, [0, 1, 2, 3, 4, 5, 6, 7, 8]], dtype=torch.int32)


def test_positions_restart_in_every_document():
    assert token_positions(DOCUMENTS).tolist() == [
        [0, 1, 2, 0, 1, 0, 1, 2, 3],
        [0, 1, 2, 3, 4, 5, 6, 7, 8],
        [0] * 9,
    ]


def test_numbers_of_documents_may_leave_gaps():
    assert token_positions(torch.tensor([[0, 0, 5, 5, 9]])).tolist() == [[0, 1, 0, 1, 0]]


def test_starts_are_first_tokens():
    assert starts_document(DOCUMENTS).long()[0].tolist() == [1, 0, 0, 1, 0, 1, 0, 0, 0]


class Counted(EarlierTokens):
    """Two tokens that go on from five."""

    positions = torch.tensor([[5, 6]])
    num_positions = 7

    def previous(self, x):
        return x


def test_earlier_tokens_count_positions_themselves():
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    assert token_positions(Counted()).tolist() == [[5, 6]]
    assert num_positions(tokens, Counted()) == 7
    assert num_positions(tokens, None) == 2
