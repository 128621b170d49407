import os
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.validators.adapters import require_trained_weights
from tests.configs import config_of


def test_random_weights_are_not_adapted_and_the_answer_names_the_newest_run(tmp_path: Path) -> None:
    require_trained_weights(config_of())
    words = ("adapter=lora", f"run.root={tmp_path}")
    with pytest.raises(ConfigurationError, match=r"random ones; nearest valid: init_from=runs/base, made by `lm"):
        require_trained_weights(config_of(*words))
    for seconds, name in ((2, "b"), (1, "a")):
        saved = tmp_path / name / "checkpoints/step_00000005/manifest.json"
        saved.parent.mkdir(parents=True)
        saved.touch()
        os.utime(saved, (seconds, seconds))
    with pytest.raises(ConfigurationError, match=rf"nearest valid: init_from={tmp_path}/b, or the folder of"):
        require_trained_weights(config_of(*words))
