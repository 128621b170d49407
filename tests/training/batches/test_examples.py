import numpy as np

from lmtrain.training.training_batches import Examples


def backwards(at):
    return 9 - at


def test_pairs_stay_together_in_the_order_of_pairs() -> None:
    rows = Examples(rows_together=2).ordered(backwards, rows_per_step=4)(np.arange(4))
    assert rows.tolist() == [18, 19, 16, 17]


def test_a_row_comes_in_copies_and_again_in_the_next_step() -> None:
    rows = Examples(copies=2, num_uses=2).ordered(backwards, rows_per_step=4)(np.arange(12))
    assert rows.tolist() == [9, 9, 8, 8, 9, 9, 8, 8, 7, 7, 6, 6]
