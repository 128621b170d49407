import pytest

from lmtrain.composition.command_line.equivalents import Together
from lmtrain.composition.command_line.tried_answers import tried


@pytest.mark.parametrize(
    ("words", "own", "whole"),
    [
        (["batch.context_tokens=4096", "batch.micro_batch_sequences=4"], [], 16384),
        (["trainer.devices=3"], [], 2304),
        (["batch.tokens_per_step=1000"], ["trainer.devices=2", "trainer.num_nodes=2"], 1024),
        (["strategy=tensor", "strategy.tensor_size=2", "trainer.devices=4", "batch.tokens_per_step=2560"], [], None),
        (["batch.context_tokens=4096"], ["experiment=llama_3_2_1b_adamw"], None),  # whose batch it divides
        (["batch.context_tokens=4096"], ["seed=1,2", "-m", "--cfg", "job"], 4096),
    ],
)
def test_a_step_of_the_answers_beside_the_words_typed_is_whole_passes(words, own, whole):
    found = tried(Together(tuple(words)), own)
    tokens = [f"batch.tokens_per_step={whole}"] if whole else []
    assert [*found.words] == [word for word in words if not (whole and "tokens_per_step" in word)] + tokens
    assert bool(found.notes) == bool(whole)


def test_another_mistake_of_the_command_is_told_beside_the_answers() -> None:
    found = tried(Together(("optimizer.lr=1",)), ["optimizer.lrr=2"])
    assert found.notes[0].startswith("optimizer.lrr=2: there is no key optimizer.lrr")
