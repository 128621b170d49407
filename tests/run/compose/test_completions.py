import pytest

from lmtrain.cli.command_table import VERBS
from lmtrain.cli.commands.completion import page
from lmtrain.run.compose.completions import completions
from lmtrain.run.compose.paths import conf_folder


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pl", {"plan"}),
        ("train optimizer=adamw_8", {"optimizer=adamw_8bit"}),
        ("plan -m optimizer=muon,lio", {"optimizer=muon,lion"}),
        ("bench run.na", {"run.name="}),
        ("train model=gpt2_124m model.num_l", {"model.num_layers="}),
        ("train run.name=no", {"run.name=notes"}),
        ("train resume=m", {"resume=must"}),
        ("train init_from=runs/n", {"init_from=runs/notes"}),
        ("generate runs/n", {"runs/notes"}),
        ("show runs/spe", {"runs/speedrun", "runs/speedrun/base"}),
        ("export ", {"gguf", "hf", "peft"}),
        ("export hf --w", {"--weights"}),
        ("export hf runs/n", {"runs/notes"}),
        ("ledger runs/c", {"runs/class/mine"}),
        ("import p", {"peft"}),
        ("tune ", {"lr", "batch"}),
        ("tune lr optimizer=adamw_8", {"optimizer=adamw_8bit"}),
        ("tune lr --l", {"--lowest"}),
        ("data ", {"show"}),
        ("data show --st", {"--step"}),
        ("launch ", {"slurm", "torchrun", "k8s", "sky"}),
        ("launch slurm --dr", {"--dry-run"}),
        ("calc ", {"tensor", "matmul"}),
        ("completion ", {"bash", "zsh", "fish"}),
        ("pipeline pipeline=speedrun_c", {"pipeline=speedrun_cpu", "pipeline=speedrun_cpu_rewards"}),
        ("pipeline --p", {"--plan"}),
        ("ls ", set()),
        ("train deterministic=", {"deterministic=true", "deterministic=false"}),
        ("doctor --j", {"--json"}),
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
    found = completions(line.split(" "), verbs=VERBS, conf=conf_folder(), page=page)
    assert set(found) == expected
