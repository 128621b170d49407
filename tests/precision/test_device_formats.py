import pytest
import torch

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.precision.float8 import fp8_facts
from lmtrain.precision.policy import require_products


def test_fp8_is_refused_on_a_cpu_with_what_to_take_instead():
    with pytest.raises(ConfigurationError, match=r"precision=fp8 needs .* 8.9 .* on cpu; .*: precision=bf16_mixed\."):
        require_products(fp8_facts(), "cpu")


@pytest.mark.faults
@pytest.mark.parametrize(
    ("capability", "recipe", "refusal"),
    [
        ((8, 0), "tensorwise", r"8\.9 or later, and this one has 8\.0"),
        ((8, 9), "tensorwise", None),
        ((8, 9), "rowwise", r"rowwise needs .* 9\.0 or later, and this one has 8\.9; .*\.recipe=tensorwise"),
        ((9, 0), "rowwise", None),
    ],
)
def test_each_recipe_has_the_hardware_it_needs(monkeypatch, capability, recipe, refusal):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    if refusal is None:
        require_products(fp8_facts(recipe=recipe), "cuda")
        return
    with pytest.raises(EnvironmentProblem, match=refusal):
        require_products(fp8_facts(recipe=recipe), "cuda")
