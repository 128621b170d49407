import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.storage.hashed_folder import write_atomically
from lmtrain.training.checkpointing.checkpoints import list_checkpoints, newest_whole, require_same_identity

IDENTITY = {"model.width": 64, "seed": 1, "data.fingerprint": "abc", "batch.tokens_per_step": 2048}


def save(folder, step, **facts):
    path = folder / f"step_{step:08d}"
    facts = {"step": step, "tokens": step * 32, "identity": IDENTITY, **facts}
    write_atomically(path, facts=facts, write=lambda aside: (aside / "state.pt").write_bytes(b"weights"))
    return path


@pytest.fixture
def folder(tmp_path):
    """A folder of three checkpoints."""
    for step in (9, 100, 20):
        save(tmp_path, step)
    return tmp_path


def test_checkpoints_are_listed_oldest_first_with_their_facts(folder):
    save(folder, 101, metrics={"train/loss": 2.5})
    listed = list_checkpoints(folder)
    assert [facts.step for facts in listed] == [9, 20, 100, 101]
    newest = listed[-1]
    assert (newest.tokens, newest.identity, newest.metrics) == (101 * 32, IDENTITY, {"train/loss": 2.5})
    assert newest.path == folder / "step_00000101"


def test_the_newest_checkpoint_is_used(folder):
    facts, passed_over = newest_whole(folder)
    assert facts is not None
    assert (facts.step, passed_over) == (100, [])


def test_damaged_checkpoints_are_passed_over_with_a_line_each(folder):
    (folder / "step_00000100" / "state.pt").write_bytes(b"weighty")
    (folder / "step_00000020" / "state.pt").unlink()
    facts, passed_over = newest_whole(folder)
    assert facts is not None
    assert facts.step == 9
    assert passed_over == [
        "step_00000100 is damaged: state.pt has changed since it was written (sha256 differs)",
        "step_00000020 is damaged: state.pt is missing",
    ]


def test_a_folder_that_is_no_checkpoint_of_ours_is_passed_over_with_its_reason(folder):
    (folder / "step_00000200").mkdir()
    (folder / "step_00000201").write_text("a file")
    write_atomically(folder / "step_00000202", facts={"epoch": 1}, write=lambda aside: None)
    facts, passed_over = newest_whole(folder)
    assert facts is not None
    assert facts.step == 100
    assert passed_over[0] == "step_00000202 is damaged: manifest.json has no step, tokens and identity"
    assert [line.partition(" ")[0] for line in passed_over] == ["step_00000202", "step_00000201", "step_00000200"]
    assert not any("None" in line for line in passed_over)


@pytest.mark.faults
def test_a_run_whose_checkpoints_are_all_damaged_never_starts_again_in_silence(folder):
    for state in folder.glob("*/state.pt"):
        state.write_bytes(b"")
    with pytest.raises(EnvironmentProblem, match=r"step_00000100.*step_00000020.*step_00000009.*Name another run"):
        newest_whole(folder)


def test_every_field_that_differs_is_named_with_both_values(folder):
    facts = list_checkpoints(folder)[0]
    with pytest.raises(ConfigurationError) as refused:
        require_same_identity(facts, IDENTITY | {"seed": 2, "data.fingerprint": "xyz"})
    message = str(refused.value)
    assert "data.fingerprint=xyz, there abc; seed=2, there 1." in message
    assert "model.width" not in message
    assert "run.name" in message
