import pytest

from data_pipelines.engines.cluster_engine import plan_jobs, require_positive
from data_pipelines.engines.local import LocalEngine
from data_pipelines.stages.clean import LengthFilter, UnicodeRepair
from data_pipelines.stages.deduplicate import ExactDeduplication
from lmtrain.errors import ConfigurationError
from tests.data_pipelines.corpus import NUM_PIECES, Planted
from tests.data_pipelines.poems import Poems

STAGES = [UnicodeRepair(), LengthFilter(), ExactDeduplication(num_tasks=2)]


def run(plan):
    for job in plan.jobs:
        for task in reversed(range(job.num_tasks)):
            job.run(task)
    return list(plan.items())


@pytest.mark.parametrize("num_tasks", [1, 3, NUM_PIECES, 1000])
@pytest.mark.parametrize("stages", [STAGES, [], [ExactDeduplication(num_tasks=5)]], ids=["all", "none", "exact"])
def test_jobs_give_what_one_stream_gives_however_many_tasks_read(tmp_path, num_tasks, stages):
    expected = list(LocalEngine()(Planted(), stages, folder=tmp_path / "local"))
    plan = plan_jobs(Planted(), stages, tmp_path / "cluster", num_tasks=num_tasks)
    assert plan.jobs[0].num_tasks == min(num_tasks, NUM_PIECES)
    assert run(plan) == expected


def test_a_source_in_one_piece_is_read_by_one_task(tmp_path):
    plan = plan_jobs(Poems(), STAGES, tmp_path, num_tasks=100)
    assert [(job.name, job.num_tasks) for job in plan.jobs] == [
        ("read_and_clean", 1),
        ("exact_hashes", 1),
        ("exact_duplicates", 2),
    ]
    assert run(plan) == list(LocalEngine()(Poems(), STAGES, folder=tmp_path / "local"))


def test_nothing_is_looked_at_alone_after_the_corpus(tmp_path):
    with pytest.raises(ConfigurationError, match=r"LengthFilter.*comes before the others.*\+cleaning\.NAME"):
        plan_jobs(Planted(), [*STAGES, LengthFilter()], tmp_path, num_tasks=1)


def test_a_number_below_one_is_refused_by_its_name():
    require_positive(a=1, b=2)
    with pytest.raises(ConfigurationError, match=r"engine\.b=0 must be positive; nearest valid: 1"):
        require_positive(a=1, b=0)


def test_what_was_cut_otherwise_before_is_not_mixed_in(tmp_path):
    expected = list(LocalEngine()(Planted(), STAGES, folder=tmp_path / "local"))
    cuts = [(3, 2), (5, 2), (5, 7)]
    plans = [
        plan_jobs(Planted(), [*STAGES[:2], ExactDeduplication(num_tasks=shares)], tmp_path, num_tasks=read)
        for read, shares in cuts
    ]
    assert len({plan.folder for plan in plans}) == 3
    assert all(run(plan) == expected for plan in plans)
    assert plan_jobs(Planted(), STAGES, tmp_path, num_tasks=3).folder == plans[0].folder
