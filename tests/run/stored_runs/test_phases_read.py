import json
from pathlib import Path
from typing import Any

import pytest

from lmtrain.data.interleave import PhasesRead
from lmtrain.run.stored_runs.phases_read import phases_of, phases_read
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts

PHASES = [[0, [0.75, 0.25]], [80, [0.0, 1.0]]]


def write(folder: Path, phases: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.json").write_text(json.dumps({"data": "data/a", "phases": phases}))
    return folder


def test_the_phases_are_those_of_the_attempt_that_wrote_the_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "attempts" / "1", PHASES)
    write(tmp_path / "attempts" / "2", PHASES[:1])
    path = tmp_path / "checkpoints" / "step_00000007"
    facts = CheckpointFacts(path=path, step=7, tokens=1, identity={}, metrics={}, attempt=1)
    placed = [(0, (0.75, 0.25)), (80, (0.0, 1.0))]
    assert phases_read(facts) == PhasesRead(phases=placed, step=7)
    assert phases_read(None) is None


@pytest.mark.parametrize(
    "phases",
    [
        None,
        7,
        [],
        [[80, [1.0]]],
        [[0, [1.0]], [9, [-1.0]]],
        [[0, [0.0, 0.0]]],
        [[0, ["x"]]],
        [[0, [1e400]]],
        [[9, [1.0]], [0, [1.0]]],
    ],
)
def test_damaged_phases_are_none(tmp_path: Path, phases: Any) -> None:
    assert phases_of(write(tmp_path, phases)) == []
