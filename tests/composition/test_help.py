from lmtrain.composition.help import describe, help_page
from lmtrain.composition.paths import conf_folder


def test_help_lists_every_option_of_every_group_with_a_line() -> None:
    page = help_page(conf_folder(), program="python train.py")
    for file in conf_folder().glob("*/*.yaml"):
        assert f" {file.stem:<22} {describe(file)}\n" in page, file


def test_help_marks_the_defaults() -> None:
    assert "* llama_tiny" in help_page(conf_folder(), program="python train.py")


def test_help_lists_shared_keys_with_their_meaning() -> None:
    page = help_page(conf_folder(), program="python train.py")
    assert "batch.tokens_per_step=" in page
    assert "seed=" in page
