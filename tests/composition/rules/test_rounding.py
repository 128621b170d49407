from pathlib import Path

import pytest

from lmtrain.composition.command_line.compose import compose_config
from lmtrain.composition.nodes.source_signatures import setting_names
from lmtrain.composition.parts.precision import build_precision
from lmtrain.composition.planning.setting import planned_setting
from lmtrain.composition.rules.rounding import ROUNDING, THAT_ROUND, require_rounding
from lmtrain.errors import ConfigurationError

OPTIMIZERS = sorted(path.stem for path in (Path(__file__).parents[3] / "conf" / "optimizer").glob("*.yaml"))
ASKED = ("precision=bf16_true", "precision.stochastic_rounding=true", "trainer.accelerator=cpu")


@pytest.mark.parametrize("name", THAT_ROUND)
def test_an_optimizer_that_rounds_at_random_is_taken(name):
    require_rounding(compose_config([*ASKED, f"optimizer={name}"]))


@pytest.mark.parametrize("read", [build_precision, lambda config: planned_setting(config, allowed=[])])
def test_one_that_does_not_is_refused_by_runs_and_plans(read):
    with pytest.raises(
        ConfigurationError, match="optimizer=sgd, which rounds to nearest; optimizer=adamw and optimizer"
    ):
        read(compose_config([*ASKED, "optimizer=sgd"]))


def test_the_refusal_names_every_optimizer_that_rounds():
    targets = {name: compose_config([f"optimizer={name}"])["optimizer"]["_target_"] for name in OPTIMIZERS}
    rounding = {target for target in targets.values() if ROUNDING in setting_names(target)}
    assert {targets[name] for name in THAT_ROUND} == rounding
