import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import parse_arguments


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["llama_3_8b", "h100_8x", "budget.tokens=1M"], "write model=llama_3_8b cluster=h100_8x."),
        (["Llama-3-8B"], "write model=llama_3_8b."),
        (["budget.tokens:500K"], "write budget.tokens=500K."),
        (["seed=3", "fsdp"], "write strategy=fsdp."),
        (["none"], "is not KEY=VALUE or GROUP=OPTION"),  # of many groups
        (["http://x"], "is not KEY=VALUE or GROUP=OPTION"),
    ],
)
def test_an_option_alone_is_answered_by_its_group_and_a_colon_by_an_equals_sign(words: list[str], meant: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_arguments(words)
    assert meant in str(refused.value)
