import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.losses.linear import LinearCrossEntropy


@pytest.mark.parametrize("loss", [CrossEntropy, ChunkedCrossEntropy, LinearCrossEntropy])
@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_z_loss_below_zero_is_refused(loss, weight):
    with pytest.raises(ConfigurationError, match=rf"loss\.z_loss_weight={weight} is not 0 or above"):
        loss(z_loss_weight=weight)


def test_the_plain_loss_has_logits_of_every_token_at_once_and_fits_everywhere():
    assert CrossEntropy().logit_tokens(123) == 123
    CrossEntropy().require_fit(device_type="cuda", soft_cap=15.0)


def test_shapes_in_signatures_are_true():
    """In a process of its own: see checked_shapes.py."""
    script = Path(__file__).with_name("checked_shapes.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("shapes hold, and one that does not is noticed") >= 3
