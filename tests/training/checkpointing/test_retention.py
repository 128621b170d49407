import pytest

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.errors import EnvironmentProblem
from lmtrain.storage.hashed_folder import write_atomically
from lmtrain.training.checkpointing.checkpoints import HeldOutScores, Retention, WriteAndRetain


def save(folder, step, score=None, **others):
    path = folder / f"step_{step:08d}"
    metrics = ({} if score is None else {BITS_PER_BYTE: score}) | others
    facts = {"step": step, "tokens": step, "identity": {}, "metrics": metrics}
    write_atomically(path, facts=facts, write=lambda aside: (aside / "state.pt").write_bytes(b"weights"))
    return path


@pytest.fixture
def folder(tmp_path):
    """Four checkpoints, the second the best."""
    for step, score in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None)):
        save(tmp_path, step, score)
    return tmp_path


def steps(folder):
    return sorted(int(path.name.removeprefix("step_")) for path in folder.iterdir())


def test_the_best_is_that_of_the_metric_which_decides(tmp_path):
    for step, of_average in ((1, 0.5), (2, 0.9), (3, 0.8)):
        save(tmp_path, step, float(3 - step), average=of_average)
    Retention(keep_last=1, keep_best=True, scores=HeldOutScores(metric="average")).after(tmp_path / "step_00000003")
    assert steps(tmp_path) == [1, 3]


def test_all_stay_while_the_new_one_is_not_whole(folder):
    (folder / "step_00000004" / "state.pt").write_bytes(b"weight$")
    with pytest.raises(EnvironmentProblem, match=r"was written, but state\.pt has changed.*older checkpoints are kept"):
        Retention(keep_last=1, keep_best=False).after(folder / "step_00000004")
    assert steps(folder) == [1, 2, 3, 4]


def test_nothing_goes_before_the_new_one_is_written(folder):
    seen = []

    def write():
        seen.append(steps(folder))
        save(folder, 5)
        return 7

    path = folder / "step_00000005"
    assert WriteAndRetain(write=write, path=path, retention=Retention(keep_last=1, keep_best=True))() == 7
    assert seen == [[1, 2, 3, 4]]
    assert steps(folder) == [2, 5]
