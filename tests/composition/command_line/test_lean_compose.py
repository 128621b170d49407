"""What is composed lean is what Hydra composes by itself, and its own functions are back afterwards."""

import contextlib
import random
from collections.abc import Callable
from typing import Any

import hydra._internal.defaults_list as hydra_defaults
import omegaconf._utils as omegaconf_utils
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from lmtrain.composition.command_line.lean_compose import CHOICES, LOADER, lean_compose
from lmtrain.composition.command_line.paths import conf_folder

# Every part of Hydra's grammar of overrides; lists of them are drawn below.
RIGHT = (
    *(
        "model=llama_3_2_1b",
        "optimizer=muon",
        "experiment=optimizer_race",
        "debug=tiny",
        "callbacks=[validation,ledger]",
    ),
    *("experiment=nano_d12", "~logger", "~callbacks.progress", "~model.width=128", "++model.width=97"),
    *("model.width=96", "+model.window_tokens=64", "+a=1e3", "+a.b={c: [1, 2.0, null, true]}", "budget.tokens=???"),
    *("seed=${batch.context_tokens}", "run.name='a b, c'", "batch.context_tokens=${oc.env:N,7}", "hydra.job.name=x"),
    *("+model@second=llama_tiny",),
)
WRONG = ("optimizer.lrr=1", "model=lama", "seed", "=", "~nothing", "~model.width=5", "x=[", "a@b=c", "seed=1,2")


REFUSED = "refused: "


def drawn(number: int) -> list[str]:
    """Draw up to five words."""
    choose = random.Random(number)
    return choose.sample(RIGHT + WRONG, choose.randint(2, 5))


def outcome(words: list[str]) -> str:
    """Return the config as Hydra composes it, its own node included, or what it refuses."""
    try:
        return OmegaConf.to_yaml(compose("train", overrides=words, return_hydra_config=True))
    except Exception as problem:  # noqa: BLE001  # compared with that of the other way
        return f"{REFUSED}{type(problem)}: {problem}"


def assert_same_outcome(words: list[str]) -> str:
    """Compose both ways."""
    with initialize_config_dir(str(conf_folder().absolute()), version_base="1.3"):
        plain = outcome(words)
        with lean_compose():
            assert outcome(words) == plain
    return plain


@pytest.mark.parametrize("word", RIGHT)
def test_the_config_is_the_one_of_hydra(word: str) -> None:
    assert not assert_same_outcome([word]).startswith(REFUSED)


@pytest.mark.parametrize("word", WRONG)
def test_the_refusal_is_the_one_of_hydra(word: str) -> None:
    assert assert_same_outcome([word]).startswith(REFUSED)


@pytest.mark.parametrize("words", [drawn(number) for number in range(12)], ids=" ".join)
def test_words_together_give_what_hydra_makes_of_them(words: list[str]) -> None:
    assert_same_outcome(words)


def test_every_file_of_ours_is_read_as_omegaconf_reads_it() -> None:
    files = sorted(conf_folder().rglob("*.yaml"))
    plain = [OmegaConf.load(file) for file in files]
    with lean_compose():
        assert [OmegaConf.load(file) for file in files] == plain


def test_an_interpolation_in_a_defaults_list_still_knows_the_choices(tmp_path):
    (tmp_path / "main.yaml").write_text("defaults:\n  - size: small\n  - paint: ${size}_paint\n  - _self_\n")
    for group, option in (("size", "small"), ("size", "large"), ("paint", "small_paint"), ("paint", "large_paint")):
        (tmp_path / group).mkdir(exist_ok=True)
        (tmp_path / group / f"{option}.yaml").write_text(f"name: {option}\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"), lean_compose():
        assert compose("main", overrides=["size=large"]).paint.name == "large_paint"


def test_a_key_that_is_there_twice_is_still_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("a: 1\na: 2\n")
    with lean_compose(), pytest.raises(Exception, match="duplicate key a"):
        OmegaConf.load(tmp_path / "a.yaml")


def theirs() -> tuple[Callable[..., Any], ...]:
    """Return what is replaced."""
    return getattr(hydra_defaults, CHOICES), getattr(omegaconf_utils, LOADER), omegaconf_utils.yaml.SafeLoader


def test_their_own_functions_are_replaced_and_back_afterwards() -> None:
    before = theirs()
    with contextlib.suppress(KeyError), lean_compose():
        assert [own is now for own, now in zip(before, theirs(), strict=True)] == [False, False, True]
        raise KeyError
    assert theirs() == before


def test_a_version_without_one_of_the_functions_composes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(omegaconf_utils, LOADER)
    with lean_compose():
        assert not hasattr(omegaconf_utils, LOADER)
    assert not hasattr(omegaconf_utils, LOADER)
