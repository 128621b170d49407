from lmtrain.accounting.training_plan.stages import PipelinePlan, StagePlan


def stage(name, *, seconds=60.0, usd=1.5, disk=100, kept=100, **more):
    return StagePlan(name=name, verb="train", seconds=seconds, usd=usd, disk_bytes=disk, kept_bytes=kept, **more)


def test_time_and_dollars_add_up_and_the_disk_peaks_where_kept_and_passing_files_meet():
    stages = [stage("base", disk=900, kept=300), stage("scored", disk=10, kept=10), stage("talker", disk=800, kept=400)]
    plan = PipelinePlan(name="p", stages=stages, free_bytes=1_200)
    assert (plan.seconds, plan.usd) == (180.0, 4.5)
    assert plan.disk_bytes == 300 + 10 + 800
    assert plan.fits_disk is True
    assert PipelinePlan(name="p", stages=stages, free_bytes=1_100).fits_disk is False
