import pytest

from data_pipelines.engines.datatrove_jobs import pipeline_of, require_finished
from data_pipelines.stages.stage import PipelineJob
from lmtrain.errors import EnvironmentProblem


class Executor:
    def __init__(self, missing):
        self.missing = missing

    def get_incomplete_ranks(self, *, skip_completed):
        assert skip_completed
        return self.missing


def test_a_pipeline_runs_the_task_of_its_rank_and_passes_nothing_on():
    ran = []
    (step,) = pipeline_of(PipelineJob("a", 3, ran.append))
    assert step(None, 2, 3) is None
    assert ran == [2]


def test_unfinished_tasks_are_refused(tmp_path):
    job = PipelineJob("a", 5, print)
    require_finished(job, Executor([]), tmp_path)
    with pytest.raises(EnvironmentProblem, match=r"^2 of 5 tasks of a did not finish \(the first is 3\)"):
        require_finished(job, Executor([3, 4]), tmp_path)
