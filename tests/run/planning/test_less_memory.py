import pytest

from lmtrain.run.compose.compose import compose_config
from lmtrain.run.planning.less_memory import less_memory
from lmtrain.run.run_config import read_config


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "recompute=every_block, loss=chunked, or strategy=fsdp over more devices"),
        (["loss=chunked"], "recompute=every_block, or strategy=fsdp over more devices"),
        (["loss=chunked", "recompute=every_block"], "strategy=fsdp over more devices"),
    ],
)
def test_what_is_chosen_already_is_not_advised(words, said):
    assert less_memory(read_config(compose_config(words))) == said
