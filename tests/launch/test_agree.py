from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.launch.agree import agree_on
from tests.ranks import on_ranks


def test_process_without_a_group_agrees_with_itself():
    agree_on("abc")


def agree_once(rank: int) -> None:
    agree_on("abc")
    with pytest.raises(ConfigurationError, match="the same configuration: hash0 on rank 0; hash1 on rank 1"):
        agree_on(f"hash{rank}")
    agree_on("abc")


@pytest.mark.distributed
def test_ranks_with_one_hash_go_on_and_with_two_are_all_refused_by_name(tmp_path: Path):
    on_ranks(agree_once, folder=tmp_path)
