import pytest
import torch.distributed as dist

from lmtrain.errors import ConfigurationError
from lmtrain.launch.detect import OuterLauncher
from lmtrain.launch.local import launch
from lmtrain.launch.process_group import broadcast_outcome, join, leave


def test_single_process_joins_no_group_and_decides_for_itself():
    join(None)
    join(OuterLauncher("torchrun", rank=0, local_rank=0, world_size=1, local_world_size=1))
    assert not dist.is_initialized()
    assert broadcast_outcome(lambda: 5) == 5
    leave()


def test_refusal_of_a_single_process_is_raised():
    def refuse():
        raise ConfigurationError("no")

    with pytest.raises(ConfigurationError, match="no"):
        broadcast_outcome(refuse)


@pytest.mark.slow
@pytest.mark.distributed
def test_rank_0_decides_and_refuses_for_all(run_folder):
    config = run_folder / "config.yaml"
    assert launch(config, num_processes=2, run_folder=run_folder, entry_point="rank_functions:decide") == 2
    assert (run_folder / "note0").read_text() == (run_folder / "note1").read_text() == "decided by 0"
    assert "seed=x is not a number" in (run_folder / "attempts" / "1" / "rank1.log").read_text()
