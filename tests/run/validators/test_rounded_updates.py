import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.builders.precision import build_precision
from lmtrain.run.compose.paths import conf_folder
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.schema.source_signatures import setting_names
from lmtrain.run.validators.rounded_updates import ROUNDING, require_rounding
from tests.configs import config_of

ASKED = ("precision=bf16_true", "precision.stochastic_rounding=true", "trainer.accelerator=cpu")


def test_only_an_optimizer_that_rounds_at_random_is_taken():
    options = sorted(path.stem for path in (conf_folder() / "optimizer").glob("*.yaml"))
    targets = [config_of(f"optimizer={name}").optimizer.target for name in options]
    rounding = sorted({target.rpartition(".")[2] for target in targets if ROUNDING in setting_names(target)})
    for name in rounding:
        require_rounding(config_of(*ASKED, f"optimizer={name}"))
    known = " and ".join(f"optimizer={name}" for name in rounding)
    with pytest.raises(ConfigurationError, match=f"optimizer=sgd, which rounds to nearest; {known} can"):
        require_rounding(config_of(*ASKED, "optimizer=sgd"))


@pytest.mark.parametrize("read", [build_precision, planned_setting])
def test_runs_and_plans_refuse_alike(read):
    with pytest.raises(ConfigurationError, match="optimizer=sgd, which rounds to nearest"):
        read(config_of(*ASKED, "optimizer=sgd"))
