"""The help pages and Tab completion."""

from pathlib import Path

import pytest

from lmtrain.cli.commands.completion import completions
from lmtrain.cli.help import COLUMNS, VERB_PAGES, help_page, verb_page
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.option_files import meanings_in, option_rows
from lmtrain.run.compose.paths import conf_folder, group_folders
from tests.configs import option_files


def test_help_of_a_shared_key_is_its_line() -> None:
    page = help_page(conf_folder(), program="python train.py", words=["--help", "resume"])
    assert " ".join(page.split()) == "resume=auto auto | never | must | PATH of a checkpoint or run folder"


@pytest.mark.parametrize("verb", sorted(VERB_PAGES))
def test_a_verb_that_takes_a_run_s_words_explains_its_own(verb: str) -> None:
    page = verb_page(verb, program=f"lmtrain {verb}")
    assert page.startswith(f"lmtrain {verb}: ")
    assert "--json" in page
    assert "lmtrain train --help" in page
    assert len(page.splitlines()) < 24, "a screen"


GROUPS = [path for path in group_folders() if path.name != "machine"]


def page(*words: str) -> str:
    return help_page(conf_folder(), program="lmtrain train", words=["--help", *words])


def test_an_option_s_page_has_keys_with_meaning_and_default_of_the_files_it_extends_too() -> None:
    lines = page("budget=epochs").splitlines()
    assert "  budget.epochs=1                 passes over the training rows" in lines
    assert "  budget.steps=null               optimizer steps" in lines


def test_no_page_is_wider_than_a_terminal() -> None:
    pages = [page(), *(page(group.name) for group in GROUPS)]
    pages.append(page("keys"))
    assert [line for text in pages for line in text.splitlines() if len(line) > COLUMNS] == []
    assert len(page().splitlines()) <= len(GROUPS) + 14  # a line a group


def test_every_option_has_a_page_as_wide_as_a_terminal() -> None:
    for file in option_files():
        shown = page(f"{file.parent.name}={file.stem}")
        assert shown.startswith(f"{file.parent.name}={file.stem}\n")
        assert [line for line in shown.splitlines() if len(line) > COLUMNS] == []


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
    ("word", "said"),
    [
        ("optimiser", "Did you mean 'optimizer'?"),
        ("model=gpt2", "Did you mean 'model=gpt2_124m'? `--help model` lists all 27."),
    ],
)
def test_an_unknown_topic_names_the_nearest(word: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        page(word)
    assert str(refused.value).endswith(said)


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
        ("export ", {"gguf", "hf", "peft"}),
        ("tune lr --l", {"--lowest"}),
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


def test_a_group_s_page_lists_the_options_of_one_s_own_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("# a model of mine\ndefaults: [nano]\n")
    shown = page("model", "--config-dir", str(tmp_path))
    assert "mine" in shown
    assert "a model of mine" in shown
    assert page("model=mine", f"--config-dir={tmp_path}").startswith("model=mine\na model of mine")
