import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.validators.adapters import require_adaptable
from tests.configs import config_of


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["strategy=tensor", "trainer.devices=2"], r"adapter=lora keeps layers whole, and strategy=tensor cuts them"),
        (["precision=fp8"], r"adapter=lora changes layers that precision=fp8 replaces; nearest valid: .*bf16_mixed"),
    ],
)
def test_parts_that_cut_or_replace_layers_are_refused(words, message) -> None:
    require_adaptable(config_of(*words))
    with pytest.raises(ConfigurationError, match=message):
        require_adaptable(config_of("adapter=lora", *words))
