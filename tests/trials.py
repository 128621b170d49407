"""Finished trials of a sweep, by their scores."""

from lmtrain.tracking.sweep_file import SweepRun, SweepTrial


def trial(number: int, *scores: float) -> SweepTrial:
    """Return a trial of a run for each score; with several their deviation is said to be 0.1."""
    runs = [SweepRun(folder="", seed=seed, score=score) for seed, score in enumerate(scores)]
    mean = sum(scores) / len(scores)
    deviation = 0.1 if len(scores) > 1 else None
    values = {"optimizer.lr": f"0.{number}"}
    return SweepTrial(number=number, values=values, state="finished", score=mean, deviation=deviation, runs=runs)
