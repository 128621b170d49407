"""The help pages and Tab completion."""

import pytest

from lmtrain.cli.commands.completion import completions
from lmtrain.run.compose.option_files import meanings_in, option_rows
from tests.configs import option_files


def test_every_key_has_a_meaning() -> None:
    """But for experiments and the like, whose keys have theirs where they are at home."""
    silent: set[str] = set()
    for file in option_files():
        meanings = meanings_in(file.parent)
        rows = (
            dict(option_rows(file))
            if file.parent.name not in {"debug", "experiment", "hardware", "hparams_search", "machine"}
            else {}
        )
        silent |= {key for key, (_, comment) in rows.items() if not comment and key not in meanings}
    assert silent == set()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pl", {"plan"}),
        ("train optimizer=adamw_8", {"optimizer=adamw_8bit"}),
        ("plan -m optimizer=muon,lio", {"optimizer=muon,lion"}),
        ("train model=gpt2_124m model.num_l", {"model.num_layers="}),
        ("train resume=m", {"resume=must"}),
        ("generate runs/n", {"runs/notes"}),
        ("show runs/spe", {"runs/speedrun", "runs/speedrun/base"}),
        ("audit runs/spe", {"runs/speedrun", "runs/speedrun/base"}),
        ("export ", {"gguf", "hf", "peft"}),
        ("bench --s", {"--seconds"}),
        ("launch ", {"slurm", "torchrun", "k8s", "sky"}),
        ("launch slurm --dr", {"--dry-run"}),
        ("pipeline pipeline=speedrun_c", {"pipeline=speedrun_cpu", "pipeline=speedrun_cpu_rewards"}),
        ("train deterministic=", {"deterministic=true", "deterministic=false"}),
        ("prepare strat", set()),
        ("nonsense ", set()),
    ],
)
def test_a_word_is_completed_as_far_as_it_is_typed(line, expected, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in (
        "notes/run.json",
        "speedrun/pipeline.json",
        "speedrun/base/run.json",
        "class/mine/run.json",
        "notes_files/0/x.png",
    ):
        (tmp_path / "runs" / file).parent.mkdir(parents=True)
        (tmp_path / "runs" / file).touch()
    found = completions(line.split(" "))
    assert set(found) == expected
