import pytest

from lmtrain.run.compose.help import VERB_PAGES, help_page, verb_page
from lmtrain.run.compose.paths import conf_folder, group_folders


def test_help_names_every_group() -> None:
    page = help_page(conf_folder(), program="python train.py")
    for folder in group_folders():
        assert f"\n  {folder.name} " in page


def test_help_marks_the_defaults() -> None:
    assert "* llama_tiny" in help_page(conf_folder(), program="python train.py")


def test_help_lists_shared_keys_with_their_meaning() -> None:
    page = help_page(conf_folder(), program="python train.py", words=["keys"])
    assert "batch.tokens_per_step=" in page
    assert "seed=" in page


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


def test_the_tokenizer_s_page_speaks_of_tokenizers() -> None:
    page = help_page(conf_folder(), program="lmtrain tokenizer", config="make_tokenizer")
    assert page.startswith("lmtrain tokenizer: learn a tokenizer")
    assert "* bpe" in page
