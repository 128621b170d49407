from dataclasses import replace

import pytest

from lmtrain.accounting.options.parts import RecomputeFacts
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.compose.group_options import words_of
from lmtrain.run.planning import auto_recompute as module
from lmtrain.run.planning.auto_recompute import setting_on_paper, with_recompute
from lmtrain.run.run_config import read_config
from tests import tiny

WORDS = [*tiny.MODEL, "tokenizer=byte_level", "tokenizer.vocab_size=512", "compile=none", "hardware=auto"]
BATCH = ["batch.context_tokens=64", "batch.tokens_per_step=1024"]
CLUSTER = ["cluster=h100_8x", "cluster.devices_per_node=1", "trainer.devices=1"]


@pytest.fixture(scope="module")
def settings():
    """The memory's setting under each recomputation, measured once."""
    return {}


def chosen(settings, *words, device_bytes):
    """Return the option chosen for a device of so many bytes, and the reason."""
    config = read_config(compose_config([*WORDS, *BATCH, *CLUSTER, *words]))

    def setting_of(changed):
        word = changed.recompute.word
        if word not in settings:
            settings[word] = setting_on_paper(changed)
        return replace(settings[word], device_bytes=device_bytes)

    changed, reason = with_recompute(config, setting_of)
    return changed.recompute.word, reason or ""


def need(settings, word, sequences):
    """Return the bytes of so many sequences at a time under a recomputation."""
    from lmtrain.accounting.training_plan.fit import memory_of

    config = read_config(compose_config([*WORDS, *BATCH, *CLUSTER, f"batch.micro_batch_sequences={sequences}"]))
    return memory_of(settings[word], config.divided(config.batch)).total


def test_the_least_recomputation_with_room_is_chosen_and_more_memory_never_means_more_of_it(settings, monkeypatch):
    monkeypatch.setattr(module, "ENOUGH_TOKENS", 256)  # 4 of the 16 sequences of a step
    assert chosen(settings, device_bytes=80 * 10**9)[0] == "none"
    chosen(settings, device_bytes=1)  # tries, and so measures, all of them
    enough = {word: need(settings, word, 4) for word in ("none", "selective", "every_block")}
    assert enough["none"] > enough["selective"] > enough["every_block"]
    for expected, num_bytes in enough.items():
        option, reason = chosen(settings, device_bytes=num_bytes)
        assert option == expected
        assert f"recompute=auto: {expected}, 256 tokens at a time take " in reason
    assert "recompute=none leaves room for 128 tokens" in chosen(settings, device_bytes=enough["selective"])[1]
    alone = need(settings, "every_block", 1)
    assert chosen(settings, device_bytes=alone)[0] == "every_block"
    reason = chosen(settings, device_bytes=alone - 1)[1]
    assert "nothing fits 0.0 GB, recompute=none is planned; recompute=selective: not one sequence fits" in reason
    pairs = {word: replace(setting, example_rows=2) for word, setting in settings.items()}
    assert "selective: not one example of 2 sequences fits" in chosen(pairs, device_bytes=alone - 1)[1]


def test_a_typed_micro_batch_has_to_fit(settings):
    chosen(settings, device_bytes=1)
    words = ["batch.micro_batch_sequences=16"]
    room = need(settings, "none", 16)
    assert chosen(settings, *words, device_bytes=room)[0] == "none"
    option, reason = chosen(settings, *words, device_bytes=room - 1)
    assert option == "selective"
    assert reason.endswith("; recompute=none: the micro batch does not fit")


def test_a_typed_recomputation_stays_and_unknown_memory_is_told(settings):
    assert chosen(settings, "recompute=every_block", device_bytes=10**12) == ("every_block", "")
    option, reason = chosen(settings, device_bytes=None)
    assert option == "none"
    assert reason == "auto: the device's memory is known at the start of a run alone"


def test_advice_never_names_an_option_that_chooses():
    assert words_of(RecomputeFacts, lambda facts: facts.keeps_all) == ["recompute=none"]


def test_a_slice_of_a_device_has_its_own_memory():
    config = read_config(compose_config([*WORDS, *CLUSTER, "cluster.memory_bytes=40GB"]))
    assert config.cluster.device_bytes == 40 * 10**9
    assert config.cluster.known_device is not None


def test_the_device_decides_over_an_experiment_and_a_typed_word_over_both() -> None:
    words = ["hardware=auto", "experiment=llama_3_2_1b_adamw"]
    config = compose_config(words)
    assert config["batch"]["micro_batch_sequences"] == "auto"
    assert read_config(config).recompute.word == read_config(config).precision.word == "auto"
    assert read_config(compose_config([*words, "recompute=selective"])).recompute.word == "selective"
