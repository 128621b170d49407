from dataclasses import replace
from typing import Any

import pytest

from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.model.model_facts import LinearBytes, ModelFacts
from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape
from lmtrain.accounting.training_plan.fit import memory_of
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.planning import auto_choices
from lmtrain.run.planning.auto_choices import setting_on_paper, with_recompute, with_strategy
from lmtrain.run.planning.setting import PlannedSetting
from lmtrain.run.run_config import RunConfig, read_config
from tests import tiny

PARAMETERS_OF_A_WIDTH = {2048: 1.2e9, 4096: 8e9, 8192: 70e9, 16384: 405e9}

TYPED = "+strategy.reduce_every_micro_step=false"
B200S = ("cluster=b200_8x", "cluster.num_nodes=8")
BATCH = ["batch.context_tokens=8192", "batch.tokens_per_step=4194304", "batch.micro_batch_sequences=1"]
SMALL = ["precision=bf16_mixed", "recompute=every_block", "loss=chunked", "budget.tokens=1B", *BATCH]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The strategies whose activations were asked for, 10 GB of each."""
    asked: list[str] = []

    def facts(config: RunConfig, setting: PlannedSetting) -> ModelFacts:
        del setting
        asked.append(config.strategy.word)
        num = round(PARAMETERS_OF_A_WIDTH[config.model.get("width")])
        none = LinearBytes(fixed=0, per_sequence=0)
        return ModelFacts(
            shape=ModelShape(num, 0, num, num, (AttentionShape(32, 128),) * 32),
            components={},
            parameters=TrainedParameters(
                num_total=num, num_hidden_matrix=num, num_largest_block=num // 32, num_outside_blocks=0
            ),
            activations=LinearBytes(fixed=0, per_sequence=10e9),
            workspace=none,
            workspace_of_many=none,
            block_workspace=none,
            block_workspace_of_many=none,
        )

    monkeypatch.setattr(auto_choices, "model_facts", facts)
    return asked


def config(*words: str) -> RunConfig:
    return read_config(compose_config([*SMALL, *words]), allowed=[])


@pytest.mark.parametrize(
    ("words", "option", "told"),
    [
        (["model=llama_3_2_1b"], "ddp", "strategy=auto: ddp takes "),
        (["model=llama_3_8b"], "fsdp", "GB of 80.0 GB per device"),
        (["model=llama_3_8b", "cluster.num_nodes=4"], "hsdp", "per device"),
        # gradients of several micro-steps are kept whole under FSDP, unless scattered at each
        (["model=llama_3_70b", "cluster.num_nodes=4"], "fsdp", "fsdp strategy.reduce_every_micro_step=true takes "),
        # and in a group of eight an eighth of them
        (["model=llama_3_70b", "cluster.num_nodes=4", TYPED], "fsdp_tensor", "fsdp_tensor takes "),
        # the micro batch of the plan: at eight sequences a step has one micro-step, and keeps no gradients
        (["model=llama_3_70b", *B200S, "batch.micro_batch_sequences=auto"], "fsdp", "strategy=auto: fsdp takes "),
        (["model=llama_3_70b", *B200S, "batch.micro_batch_sequences=null"], "fsdp", "strategy=auto: fsdp takes "),
    ],
)
@pytest.mark.usefixtures("measured")
def test_the_first_that_fits_is_chosen_and_told_with_what_did_not(words: list[str], option: str, told: str) -> None:
    chosen, line = with_strategy(config("cluster=h100_8x", *words))
    assert chosen.strategy.word == option
    assert line is not None
    assert told in line
    if option == "hsdp":
        assert chosen.strategy.get("shard_size") == 8


@pytest.mark.usefixtures("measured")
def test_what_fits_nowhere_gets_the_most_shards_and_says_so(measured: list[str]) -> None:
    chosen, line = with_strategy(config("cluster=h100_8x", "model=llama_3_405b"))
    assert measured == ["ddp"], "weights alone are too large for the others"
    assert chosen.strategy.word == "fsdp_tensor"
    assert line is not None
    assert line.startswith("strategy=auto: nothing fits; fsdp_tensor needs")


@pytest.mark.parametrize("words", [["optimizer=adafactor"], ["model.num_kv_heads=1", "model.width=16384"]])
@pytest.mark.usefixtures("measured")
def test_no_strategy_is_chosen_that_refuses_the_run_s_optimizer_or_layers(words: list[str]) -> None:
    chosen, line = with_strategy(config("cluster=h100_8x", "model=llama_3_8b", *words))
    assert chosen.strategy.word == ("ddp" if words == ["optimizer=adafactor"] else "fsdp")
    assert line is not None
    assert "nothing fits" in line


@pytest.mark.parametrize(
    "words",
    [
        ["model=llama_3_8b"],  # this machine's device is not known to a plan
        ["model=llama_3_8b", "cluster=h100_8x", "trainer.devices=1"],
        ["model=llama_3_8b", "cluster=h100_8x", "strategy=ddp"],
    ],
)
@pytest.mark.usefixtures("measured")
def test_nothing_else_is_changed(words: list[str]) -> None:
    before = config(*words)
    after, line = with_strategy(before)
    assert after is before
    assert line is None


WORDS = [*tiny.MODEL, "tokenizer=byte_level", "tokenizer.vocab_size=512", "compile=none", "hardware=auto"]
STEP = ["batch.context_tokens=64", "batch.tokens_per_step=1024"]
ONE = ["cluster=h100_8x", "cluster.devices_per_node=1", "trainer.devices=1"]


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    """The inputs of the memory under each recomputation, measured once."""
    return {}


def chosen_recompute(settings: dict[str, Any], *words: str, device_bytes: int | None) -> tuple[str, str]:
    asked = read_config(compose_config([*WORDS, *STEP, *ONE, *words]))

    def setting_of(changed: RunConfig) -> Any:
        word = changed.recompute.word
        if word not in settings:
            settings[word] = setting_on_paper(changed)
        return replace(settings[word], device_bytes=device_bytes)

    changed, reason = with_recompute(asked, setting_of)
    return changed.recompute.word, reason or ""


def need(settings: dict[str, Any], word: str, sequences: int) -> int:
    asked = read_config(compose_config([*WORDS, *STEP, *ONE, f"batch.micro_batch_sequences={sequences}"]))
    return memory_of(settings[word], asked.divided(asked.batch)).total


def test_the_least_recomputation_with_room_is_chosen_and_more_memory_never_means_more_of_it(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_choices, "ENOUGH_TOKENS", 256)  # 4 of the 16 sequences of a step
    assert chosen_recompute(settings, device_bytes=80 * 10**9)[0] == "none"
    chosen_recompute(settings, device_bytes=1)  # tries, and so measures, all of them
    enough = {word: need(settings, word, 4) for word in ("none", "selective", "every_block")}
    assert enough["none"] > enough["selective"] > enough["every_block"]
    for expected, num_bytes in enough.items():
        option, reason = chosen_recompute(settings, device_bytes=num_bytes)
        assert option == expected
        assert f"recompute=auto: {expected}, 256 tokens at a time fit " in reason
    alone = need(settings, "every_block", 1)
    assert chosen_recompute(settings, device_bytes=alone)[0] == "every_block"
    assert "nothing fits" in chosen_recompute(settings, device_bytes=alone - 1)[1]


def test_a_typed_micro_batch_has_to_fit_and_a_typed_recomputation_stays(settings: dict[str, Any]) -> None:
    chosen_recompute(settings, device_bytes=1)
    words = ["batch.micro_batch_sequences=16"]
    room = need(settings, "none", 16)
    assert chosen_recompute(settings, *words, device_bytes=room)[0] == "none"
    assert chosen_recompute(settings, *words, device_bytes=room - 1)[0] == "selective"
    assert chosen_recompute(settings, "recompute=every_block", device_bytes=10**12) == ("every_block", "")
    assert chosen_recompute(settings, device_bytes=None)[0] == "none"
