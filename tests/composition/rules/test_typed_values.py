"""What is told sooner is what is told anyway, and a right command line is told nothing."""

import subprocess
import sys

import pytest

from lmtrain.composition.execution.check_config import check_config
from lmtrain.composition.rules.typed_values import refuse_typed
from lmtrain.errors import ConfigurationError
from tests.configs import config_of
from tests.tiny import PROJECT, environment

RIGHT = [
    "model.width=128",
    "+model.window_tokens=64",
    "model.qk_norm=true",
    "batch.tokens_per_step=256K",
    "batch.micro_batch_sequences=auto",
    "budget.tokens=2M",
    "optimizer.lr=1e-3",
    "callbacks.validation=null",
    "run.cache=elsewhere",
]
WRONG = {
    "model.width=-3": "model.width=-3 is below 1; nearest valid: 1.",
    "model.qk_norm=3": "model.qk_norm=3 is not of type bool.",
    "batch.context_tokens=banana": "batch.context_tokens=banana is not a number",
    "batch.tokens_per_step=1000": "nearest valid: 1024.",
    "budget.tokens=0": "budget.tokens=0 is not above 0",
    "model.width=1e30": "model.width=1e+30 is more than any model can have; at most 16777216.",
    "batch.context_tokens=1e30": "batch.context_tokens=1e+30 is more than any model can have",
    "trainer.accelerator=foo": "trainer.accelerator=foo is none of auto, cpu, gpu, cuda, mps",
    "trainer.devices=-1": "trainer.devices=-1 is below 1; nearest valid: 1.",
    "optimizer.lr=-1": "optimizer.lr=-1 is not at least 0",
    "cluster.peak_flops=abc": "cluster.peak_flops=abc is not a number",
    "callbacks.checkpoint.keep_last=no": "callbacks.checkpoint.keep_last=no is not a number",
}
REFUSE = """
import sys
from lmtrain.cli import serve
code = serve("train", sys.argv[1:], program="python train.py")
print(code, "torch" in sys.modules, "lightning" in sys.modules)
"""


@pytest.mark.parametrize("word", WRONG)
def test_a_wrong_value_is_refused_with_the_words_of_the_whole_check(word: str) -> None:
    with pytest.raises(ConfigurationError) as sooner:
        refuse_typed(config_of(word), [word])
    assert WRONG[word] in str(sooner.value)


def test_what_a_person_did_not_type_is_left_to_the_whole_check() -> None:
    refuse_typed(config_of("model.width=-3"), [])


@pytest.mark.parametrize("word", RIGHT)
def test_a_right_value_passes(word: str) -> None:
    refuse_typed(config_of(word), [word, "model=llama_tiny", "~callbacks.progress"])


def test_a_config_is_the_same_whether_it_was_typed_or_not() -> None:
    config = config_of(*RIGHT)
    assert check_config(config.values, allowed=[], typed=RIGHT) == check_config(config.values, allowed=[])


def test_a_wrong_value_is_refused_before_torch_is_there() -> None:
    command = [sys.executable, "-c", REFUSE, "model.width=-3"]
    told = subprocess.run(command, cwd=PROJECT, env=environment(), capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["2", "False", "False"]
