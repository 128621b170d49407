"""Every optimizer trains from the command line, and one that cannot is refused before anything is prepared."""

from pathlib import Path

import pytest

from lmtrain.accounting.optimizer_state import optimizer_state
from lmtrain.cli import serve
from lmtrain.composition.compose import compose_config
from lmtrain.composition.optimizer_rules import SHARDED, WHOLE_ONLY
from lmtrain.composition.optimizers import build_optimizer, require_optimizer
from lmtrain.composition.planned_setting import planned_setting
from lmtrain.composition.start import check_config
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.optim import packages
from tests import tiny
from tests.optim.models import tiny_model
from tests.optim.options import OPTIONS, OWN


def require(*words: str) -> None:
    require_optimizer(check_config(compose_config([*tiny.MODEL, *words]), allowed=[]))


def test_every_option_says_whether_it_can_be_sharded() -> None:
    assert sorted((*SHARDED, *WHOLE_ONLY)) == sorted(OWN)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_goes_with_the_default_model_by_one_word(option: str) -> None:
    require(f"optimizer={option}")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("optimizer=adafactor strategy=fsdp", ["does not work with strategy=fsdp", "optimizer=muon, adamw"]),
        ("optimizer=schedule_free schedule=trapezoid", ["schedule=trapezoid decays", "schedule=constant"]),
        ("optimizer=adamw optimizer.beta1=2", ["optimizer.beta1=2 is not at least 0 and below 1; nearest usual: 0.95"]),
        ("optimizer.momentum=2", ["optimizer.momentum=2 is not at least 0 and below 1"]),
        ("optimizer.row_beta=-1", ["optimizer.row_beta=-1 is not at least 0 and below 1; nearest usual: 0"]),
        ("optimizer.head_lr=-1", ["optimizer.head_lr=-1 is negative; nearest valid: 0"]),
        ("optimizer.weight_decay=-1", ["optimizer.weight_decay=-1 is negative; nearest valid: 0"]),
        ("optimizer.lr=nan", ["optimizer.lr=nan is not a finite number"]),
        ("optimizer=momentum optimizer.momentum=nan", ["optimizer.momentum=nan is not at least 0 and below 1"]),
        ("optimizer=sgd optimizer.lr_multipliers={head:-2}", ["optimizer.lr_multipliers.head=-2 is negative"]),
        ("optimizer=schedule_free optimizer.beta1=0", ["optimizer.beta1=0 leaves schedule_free without its average"]),
        ("optimizer=lion optimizer.lr=0", ["optimizer=lion: ", "lr must be above 0"]),
        ("optimizer=sgd optimizer.lr=-1", ["optimizer.lr=-1 is negative"]),
        ("optimizer=adamw optimizer.moments=fp8", ["optimizer.moments=fp8 is none of bf16"]),
        ("optimizer=sgd +optimizer.momentum=0.9", ["optimizer.momentum=0.9 is not a setting of this node"]),
        ("optimizer=adamw optimizer.lr_multipliers={heads:2}", ["lr_multipliers.heads", "Did you mean 'head'?"]),
        ("optimizer.cautious_decay=true", ["optimizer.cautious_decay=true has no effect"]),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_fix(words: str, parts: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        require(*words.split())
    for part in parts:
        assert part in str(refused.value)


def test_a_missing_package_ends_the_command_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = packages.importlib.util.find_spec
    monkeypatch.setattr(
        packages.importlib.util, "find_spec", lambda name, *rest: None if name == "lion_pytorch" else found(name, *rest)
    )
    monkeypatch.chdir(tmp_path)
    code = serve("train", [*tiny.TINY, "optimizer=lion", "run.name=a"], program="python train.py")
    assert code == EnvironmentProblem.exit_code
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("lmtrain: ")]
    assert said == [
        "lmtrain: optimizer=lion needs the package lion_pytorch: pip install 'lmtrain[optim]', or use optimizer=adamw."
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", OPTIONS)
def test_a_plan_counts_the_state_of_every_option(option: str) -> None:
    config = compose_config([f"optimizer={option}"])
    word = str(config["optimizer"]["_target_"]).split(".")[-1]
    assert planned_setting(config, allowed=[]).state == optimizer_state(word, config["optimizer"])


def test_a_plan_counts_bf16_moments() -> None:
    state = planned_setting(compose_config(["optimizer=adamw", "optimizer.moments=bf16"]), allowed=[]).state
    assert (state.value_bytes, state.per_matrix_value) == (2, 2)


def test_groups_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    config = compose_config(["optimizer=adamw", "optimizer.lr=0.01"])
    build_optimizer(config, rank=1)(tiny_model())
    assert capsys.readouterr().out == ""
    build_optimizer(config, rank=0)(tiny_model())
    assert capsys.readouterr().out.splitlines() == [
        "optimizer=adamw",
        "  matrices: 1,024 parameters in 8 tensors, lr 0.01, weight decay 0.1",
        "  head: 128 parameters in 1 tensor, lr 0.01, weight decay 0.1",
        "  embeddings: 384 parameters in 3 tensors, lr 0.01, weight decay 0",
        "  vectors: 64 parameters in 8 tensors, lr 0.01, weight decay 0",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("option", OWN)
def test_every_option_trains_from_the_command_line_and_resumes_exactly(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*tiny.TINY, "debug=tiny", f"optimizer={option}", "schedule=constant"]
    for more in (["run.name=whole"], ["run.name=parted", "budget.steps=13"], ["run.name=parted"]):
        assert serve("train", [*words, *more], program="python train.py") == 0, capfd.readouterr().err
    whole, parted = (tiny.losses(tmp_path / "runs" / name) for name in ("whole", "parted"))
    assert len(whole) == 20
    # Schedule-free weights move to their average and back where a run saves, which rounds in fp32.
    assert whole == (pytest.approx(parted, abs=1e-6) if option == "schedule_free" else parted)
    values = list(whole.values())
    assert sum(values[-3:]) < sum(values[:3])
    assert f"optimizer={option}\n  matrices: " in capfd.readouterr().out
