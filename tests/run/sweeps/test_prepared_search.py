import re
import sys
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.launch.detect import OuterLauncher
from lmtrain.missing_package import install_command
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.search_words import SearchWords, search_of
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps.prepared_search import PreparedSearch, prepare_search
from tests.configs import config_of

SPACE = "optimizer.lr=tag(log,interval(1e-3,1e-1))"


def prepared(root: Path, *words: str, outer: OuterLauncher | None = None) -> PreparedSearch:
    base = ["tokenizer=byte_level", "logger=none", f"run.root={root}", "cluster.peak_flops=1e12"]
    found = search_of(parse_arguments(["-m", "hydra/sweeper=optuna", SPACE, *base, *words]))
    assert isinstance(found, SearchWords)

    def make_job(arguments) -> Job:
        config = config_of(*arguments.words)
        if config.optimizer.get("lr") == 0.1 and "seed=13" in words:
            raise ConfigurationError("optimizer.lr=0.1 is too high.")
        return Job(
            config=config, overrides=arguments.overrides, name="", root=str(root), config_dir=arguments.config_dir
        )

    return prepare_search(found, make_job, outer=outer, program="python train.py")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=13"], r"optimizer.lr=0.1 is too high. This is trial 2 of 2 (optimizer.lr=0.1); no trial was started."),
        (["resume=never"], "resume=never is of a single run"),
        (["callbacks.validation=null"], "sweep.metric=validation/bits_per_byte needs callbacks.validation"),
        (
            ["sweep.metric=validation/ema_loss"],
            "no weight_average keeps any; nearest valid: sweep.metric=validation/loss.",
        ),
        (["sweep.metric=validation/code/loss"], "is logged by no trial; there are validation/bits_per_byte, "),
        (["callbacks.graceful_stop=null", "sweep.pruner=median"], "callbacks.graceful_stop, which is switched off"),
        (
            ["callbacks.validation.num_passes=1", "sweep.pruner=median"],
            "nearest valid: callbacks.validation.num_passes=4",
        ),
        (["sweep.max_usd=3"], "sweep.max_usd=3 needs a price"),
        (["sweep.pruner=halving", "sweep.sampler=random", "budget.hours=1"], "needs a known number of steps"),
        (["sweep.pruner=median", "sweep.metric=train/loss"], "sweep.pruner=median judges validations"),
    ],
)
def test_every_refusal_comes_before_the_first_trial(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        prepared(tmp_path, *words)
    assert message in str(refused.value)
    assert [*tmp_path.iterdir()] == []


def test_halvings_rounds_follow_the_validations(tmp_path: Path) -> None:
    assert prepared(tmp_path, "sweep.pruner=halving", "sweep.sampler=random").rounds == [1, 2, 4]
    named = prepared(tmp_path, "run.name=race")
    assert (named.folder.path, named.rounds) == (tmp_path / "race", [1])


def test_the_best_trial_s_command_finds_the_options_of_the_person_s_own_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    lines = prepared(tmp_path, "--config-dir", str(tmp_path / "mine"), "run.name=race").trial_lines("race")
    assert lines.fixed[:3] == ["--config-dir", str(tmp_path / "mine"), "tokenizer=byte_level"]
    assert "run.name=race" not in lines.fixed


def test_a_search_needs_its_packages_and_no_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentProblem, match="run it once, without torchrun or srun"):
        prepared(tmp_path, outer=OuterLauncher.__new__(OuterLauncher))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        EnvironmentProblem, match=re.escape(f"needs the package optuna: {install_command('sweep', 'optuna')}")
    ):
        prepared(tmp_path)
