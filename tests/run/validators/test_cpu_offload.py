import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.planning.simulated import simulation
from tests.configs import config_of

ASKED = ("optimizer_cpu_offload=true", "cluster=h100_8x", "optimizer=adamw", "data=synthetic")


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("cluster=cpu",), "has no effect on a CPU: state is in host memory; nearest valid: false"),
        (("spikes=skip",), "=true with spikes, which copy weights and state .* nearest valid: spikes=none"),
        (("optimizer.moments=bf16",), "nearest valid: precision.stochastic_rounding=false and optimizer.moments=null"),
        (("precision=bf16_true", "precision.stochastic_rounding=true"), "rounding by chance draws once for all"),
    ],
)
def test_parts_that_cannot_go_with_it_are_refused(words, refusal):
    assert planned_setting(config_of(*ASKED)).offloads_state
    with pytest.raises(ConfigurationError, match=refusal):
        planned_setting(config_of(*ASKED, *words))


def test_a_simulation_says_that_it_does_not_count_it():
    with pytest.raises(ConfigurationError, match="`lmtrain plan` counts the way to host memory"):
        simulation(config_of(*ASKED))
