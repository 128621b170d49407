import pytest

from lmtrain.launch.agree import agree_on
from lmtrain.launch.local import launch


def test_process_without_a_group_agrees_with_itself():
    agree_on("abc")


@pytest.mark.slow
@pytest.mark.distributed
def test_ranks_with_one_hash_go_on(run_folder):
    config = run_folder / "config.yaml"
    assert launch(config, num_processes=2, run_folder=run_folder, entry_point="rank_functions:hash_all") == 0


@pytest.mark.slow
@pytest.mark.distributed
def test_ranks_with_two_hashes_are_all_refused_by_name(run_folder, capfd):
    config = run_folder / "config.yaml"
    config.write_text("different")
    assert launch(config, num_processes=2, run_folder=run_folder, entry_point="rank_functions:hash_all") == 2
    assert "the same configuration: hash0 on rank 0; hash1 on rank 1" in capfd.readouterr().err
