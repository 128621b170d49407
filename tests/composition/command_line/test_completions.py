import pytest

from lmtrain.composition.command_line.completions import completions
from lmtrain.composition.command_line.paths import conf_folder


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
        ("train init_from=", {"init_from=runs/notes"}),
        ("generate runs/n", {"runs/notes"}),
        ("export g", {"gguf"}),
        ("train deterministic=", {"deterministic=true", "deterministic=false"}),
        ("doctor --j", {"--json"}),
        ("prepare strat", set()),
        ("nonsense ", set()),
    ],
)
def test_a_word_is_completed_as_far_as_it_is_typed(line, expected, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "notes").mkdir(parents=True)
    found = completions(line.split(" "), verbs=["plan", "train"], conf=conf_folder())
    assert set(found) == expected
