import pytest
import torch

from lmtrain.errors import DataError
from lmtrain.interop.finite import require_finite


def test_numbers_pass_as_they_are():
    tensor = torch.ones(3)
    assert require_finite(tensor, name="a", where="b") is tensor


def test_what_is_no_number_is_counted():
    tensor = torch.tensor([1.0, float("inf"), -float("inf"), float("nan")], dtype=torch.bfloat16)
    with pytest.raises(DataError, match="a in b has 2 infinities and 1 NaN among 4 values of bfloat16"):
        require_finite(tensor, name="a", where="b")
