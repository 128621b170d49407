from types import SimpleNamespace
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.builders.precision import build_precision, tell_of_precision
from lmtrain.tracking.events import EventLog
from tests.configs import config_of
from tests.optim.models import tiny_model


def precision(*words):
    return build_precision(config_of(*words, "trainer.accelerator=cpu"))


@pytest.mark.parametrize("name", ["fp32", "fp16_mixed", "bf16_mixed", "bf16_true"])
def test_what_a_cpu_can_do_is_built(name):
    assert precision(f"precision={name}").name == name


@pytest.mark.parametrize("name", ["tf32", "fp8"])
def test_what_it_cannot_is_refused_although_it_can_be_planned(name):
    with pytest.raises(ConfigurationError, match=f"precision={name} needs a GPU"):
        precision(f"precision={name}")


@pytest.mark.parametrize(
    ("peak_flops", "said"), [(989.4e12, "; peak 989.4 TFLOP/s a device (H100)"), (None, "; peak not known (H100)")]
)
def test_a_run_states_bytes_and_the_peak_that_utilization_divides_by(peak_flops, said, tmp_path, capsys):
    plan, events = SimpleNamespace(peak_flops=peak_flops, peak_source="H100"), EventLog(tmp_path, 0)
    for is_main_process in (True, False):
        context: Any = SimpleNamespace(plan=plan, events=events, is_main_process=is_main_process)
        tell_of_precision(precision("precision=bf16_mixed"), tiny_model(), context, strategy_casts=True)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(f"bytes a parameter: 4 weights + 4 gradients + 4 a moment{said}")
