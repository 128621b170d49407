import re

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.help import help_page
from lmtrain.run.compose.help_topics import COLUMNS, describe, meanings_in, option_page, option_rows
from lmtrain.run.compose.paths import conf_folder, group_folders
from tests.configs import option_files

GROUPS = [path for path in group_folders() if path.name != "machine"]


def page(*words: str) -> str:
    return help_page(conf_folder(), program="lmtrain train", words=["--help", *words])


@pytest.mark.parametrize("group", GROUPS, ids=lambda path: path.name)
def test_a_group_s_page_has_every_option_with_its_line(group) -> None:
    words = page(group.name).split()
    for file in group.glob("*.yaml"):
        assert file.stem in words
        assert " ".join(describe(file).split()) in " ".join(words), file


def test_an_option_s_page_has_keys_with_meaning_and_default_of_the_files_it_extends_too() -> None:
    lines = page("budget=epochs").splitlines()
    assert "  budget.epochs=1                 passes over the training rows" in lines
    assert "  budget.steps=null               optimizer steps" in lines


def test_an_option_s_page_has_the_settings_that_only_its_code_names() -> None:
    assert "  +optimizer.stochastic_rounding=false" in page("optimizer=adamw").splitlines()


def test_the_width_of_a_head_is_the_model_s_by_its_own_keys() -> None:
    told = 0
    for file in (conf_folder() / "model").glob("*.yaml"):
        rows = {key.removeprefix("model."): value for key, (value, _) in option_rows(file)}
        words = re.search(r"num_heads=(\d+) +of width (\d+)", option_page(file))
        told += words is not None
        if words:
            assert int(words[1]) * int(words[2]) == int(rows["width"]), file
    assert told >= 4


def test_nested_keys_have_their_whole_path() -> None:
    assert "callbacks.checkpoint.every_seconds=30.0" in page("callbacks=checkpoint")


def test_the_shared_keys_are_a_page() -> None:
    assert "batch.tokens_per_step=2048" in page("keys")


def test_no_page_is_wider_than_a_terminal() -> None:
    pages = [page(), *(page(group.name) for group in GROUPS)]
    pages.append(page("keys"))
    assert [line for text in pages for line in text.splitlines() if len(line) > COLUMNS] == []
    assert len(page().splitlines()) <= len(GROUPS) + 14  # a line a group


def test_every_option_has_a_page_as_wide_as_a_terminal() -> None:
    for file in option_files():
        page = option_page(file)
        assert page.startswith(f"{file.parent.name}={file.stem}\n")
        assert [line for line in page.splitlines() if len(line) > COLUMNS] == []


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


def test_a_meaning_is_told_once_for_all_options_of_a_group() -> None:
    lines = page("model=llama_3_8b").splitlines()
    assert "  model.width=4096                numbers of a token's vector" in lines
    assert "  +model.key_smear=false          add the previous token's keys, by a learned" in lines, "of the code alone"


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
