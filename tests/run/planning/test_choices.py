import random
import re
from functools import partial
from pathlib import Path

import pytest

from lmtrain.accounting.training_plan.setting import memory_of
from lmtrain.errors import ConfigurationError
from lmtrain.run.planning import known_models, measured_model
from lmtrain.run.planning.choices import advice, setting_on_paper, weighed, with_recompute
from lmtrain.run.planning.plan import planned_runs, planned_with
from lmtrain.run.planning.strategy_choice import with_strategy
from lmtrain.run.planning.tried_words import with_words
from lmtrain.run.run_config import RunConfig
from tests.configs import config_of
from tests.tiny import MODEL, QUIET

WORDS = ["model=llama_3_8b", "cluster=h100_8x", "precision=bf16_mixed", "strategy=fsdp", "budget.tokens=1B"]


def test_a_candidate_takes_the_time_that_its_plan_takes() -> None:
    words = [*WORDS[:-2], "strategy=context", "strategy.context_size=4", "batch.context_tokens=8192"]
    (run,) = planned_runs([*words, "budget.tokens=1B"])
    candidate = weighed(config_of(*words, "budget.tokens=1B"))
    assert candidate is not None
    assert candidate.cost is not None
    assert run.plan.step is not None
    batch = candidate.batch
    assert candidate.cost * batch.tokens_per_step / batch.num_ranks == pytest.approx(run.plan.step.seconds)


def typed_words(line: str) -> list[list[str]]:
    """Return the words to type of a line of advice, one list a choice; none where it claims nothing."""
    claim, found, words = line.partition(": " if line.startswith("a larger") else " with ")
    if not found or not claim.startswith(("fits", "finishes", "a larger")):
        return []
    return [choice.split() for choice in words.split(", or with ")]


MODELS = ("gpt2_1558m", "llama_3_8b", "llama_3_70b", "mixtral_8x7b", "qwen_3_32b")


@pytest.fixture(scope="module")
def composed() -> list[RunConfig]:
    on = ["tokenizer=byte_level", "cluster=h100_8x", "precision=bf16_mixed", "budget.tokens=1B", "optimizer=adamw"]
    choices = [
        ["strategy=ddp"],
        ["strategy=fsdp"],
        ["strategy=ddp", "recompute=every_block"],
        ["strategy=hsdp"],
        ["strategy=fsdp_tensor", "recompute=every_block"],
        ["strategy=fsdp", "strategy.reshard_after_forward=false"],
        ["strategy=tensor"],
    ]
    models = [config_of(*on, f"model={model}") for model in MODELS]
    return [with_words(model, choice) for choice in choices for model in models]


def test_a_choice_of_strategy_weighs_recomputation_where_none_is_chosen() -> None:
    words = ["model=llama_3_1_70b", "cluster=h100_8x", "cluster.num_nodes=32", "budget.tokens=1T"]
    (chosen,) = planned_runs(words)
    (kept,) = planned_runs([*words, "strategy=context", "strategy.reduce_every_micro_step=true"])
    assert any("otherwise fsdp recompute=every_block" in line for line in chosen.advice.lines)
    assert chosen.plan.fits
    assert kept.plan.fits
    assert chosen.plan.speed is not None
    assert kept.plan.speed is not None
    assert chosen.plan.speed.step_seconds < 0.6 * kept.plan.speed.step_seconds


def test_an_unknown_network_is_planned_by_the_rate_that_it_needs() -> None:
    words = ["model=llama_3_8b", "cluster=h100_8x", "cluster.num_nodes=8", "budget.tokens=1T", "optimizer=adamw"]
    words += ["strategy=fsdp", "precision=bf16_mixed", "batch.tokens_per_step=524288", "batch.context_tokens=8192"]
    (known,) = planned_runs([*words, "cluster.network_bytes_per_second=100GB"])
    (unknown,) = planned_runs([*words, "cluster.device_network_bytes_per_second=null"])
    assert not any("the network between nodes" in line for line in known.advice.lines)
    (line,) = (line for line in unknown.advice.lines if "the network between nodes" in line)
    assert "doctor --nodes" in line
    assert known.plan.speed is not None
    stated = f"cluster.mfu={known.plan.speed.mfu_palm}"
    (right,) = planned_runs([*words, "cluster.device_network_bytes_per_second=null", stated])
    (line,) = (line for line in right.advice.lines if "the network between nodes" in line)
    (rate,) = re.findall(r"is right at ([\d.]+) GB/s a node", line)
    assert float(rate) == pytest.approx(100, rel=0.13)


def test_a_context_that_fits_on_no_device_is_advised_to_be_shorter() -> None:
    of_a_context = ["model=llama_3_1_70b", "batch.context_tokens=131072", "batch.tokens_per_step=8388608"]
    words = [*WORDS, *of_a_context, "cluster.num_nodes=8", "recompute=every_block", "loss=chunked"]
    (run,) = planned_runs(words)
    (line,) = run.advice.lines[1:]
    assert line.startswith("fits with batch.context_tokens=")
    (typed,) = planned_runs([*words, *typed_words(line)[0]])
    assert typed.plan.fits


def random_config(composed: list[RunConfig], draw: random.Random) -> RunConfig:
    """Return a config of one to 24 nodes with random devices, steps and budgets of time or money."""
    micro, accumulation, num_nodes = draw.choice((1, 2, 3, 8, 24)), draw.choice((1, 5, 6, 16)), draw.randint(1, 24)
    devices = draw.choice((1, 3, 8))
    context = draw.choice((512, 1024))
    budget = draw.choice(({}, {"hours": draw.uniform(0.1, 50)}, {"usd": draw.uniform(20, 20_000)}))
    config = draw.choice(composed)
    product = draw.choice(["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA B200"])
    cluster = {"devices_per_node": devices, "num_nodes": num_nodes, "usd_per_gpu_hour": 2.5, "device": product}
    steps = {"context_tokens": context, "micro_batch_sequences": micro}
    tokens = {"tokens_per_step": micro * accumulation * devices * num_nodes * context}
    held = config.values
    return config.changed(
        cluster=held["cluster"] | cluster,
        trainer=held["trainer"] | {"devices": devices, "num_nodes": num_nodes},
        batch=held["batch"] | steps | tokens,
        budget=held["budget"] | {"tokens": draw.randint(10**8, 10**11)} | budget,
    )


@pytest.fixture
def only_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConfigurationError("not measured")

    table = known_models.read_json(known_models.TABLE)
    monkeypatch.setattr(known_models, "read_json", lambda path: table if path == known_models.TABLE else {})
    monkeypatch.setattr(measured_model, "measure_model", refuse)


def test_sixty_failing_plans_have_at_most_three_remedies_which_do_as_they_say_when_typed(composed, only_known) -> None:
    draw, num_failing, num_typed = random.Random(1), 0, 0
    while num_failing < 60:
        config = random_config(composed, draw)
        plan = planned_with(config, [])
        if plan is None:  # tensor groups of more ranks than there are
            continue
        said = advice(config, plan, setting_on_paper(config), partial(planned_with, config))
        num_failing += not said.is_possible
        assert sum(len([*typed_words(line)]) for line in said.lines) <= 3
        for line in said.lines:
            for words in typed_words(line):
                num_typed += 1
                typed = planned_with(config, words)
                assert typed is not None, (line, config.batch, config.cluster)
                assert typed.fits or line.startswith("finishes")
                is_in_time = typed.horizon.limited_by == "tokens"
                assert is_in_time or not line.startswith("finishes"), (line, typed.horizon)
    assert num_typed > 60


def test_an_auto_micro_batch_that_fits_nothing_points_to_the_plan():
    words = ["model=llama_3_8b", "cluster=a100_8x", "strategy=fsdp", "trainer.devices=8", "precision=bf16_mixed"]
    words += ["batch.context_tokens=8192", "batch.tokens_per_step=1048576", "batch.micro_batch_sequences=auto"]
    with pytest.raises(
        ConfigurationError, match=r"not even 1 fits, .*`lmtrain plan batch\.micro_batch_sequences=1` has advice"
    ):
        planned_runs(words)
    assert planned_runs([*words, "strategy.reduce_every_micro_step=true"])


def test_a_micro_batch_that_parts_pairs_of_answers_is_refused_as_in_training(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").touch()
    words = [
        *MODEL,
        "tokenizer=byte_level",
        *QUIET,
        "task=dpo",
        "init_from=x",
        f"source.paths=[{tmp_path}/pairs.jsonl]",
    ]
    words += ["budget=steps", "budget.steps=9", "batch.context_tokens=32", "batch.tokens_per_step=192"]
    with pytest.raises(ConfigurationError, match=r"micro_batch_sequences: must be a multiple of 2 .*Did you mean 2"):
        planned_runs([*words, "batch.micro_batch_sequences=3"])
    (run,) = planned_runs([*words, "cluster.memory_bytes=1e9", "batch.micro_batch_sequences=2"])
    assert "a larger micro batch fits too: batch.micro_batch_sequences=6" in run.advice.lines


OF_A_NODE = (
    "cluster=h100_8x",
    "precision=bf16_mixed",
    "optimizer=adamw",
    "compile=blocks",
    "batch.context_tokens=8192",
)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["model=llama_3_2_1b", "batch.tokens_per_step=262144", "loss=chunked"], {"ddp", "fsdp"}),
        (["model=llama_3_8b", "batch.tokens_per_step=524288", "loss=chunked"], {"fsdp", "hsdp"}),
        (["model=llama_3_70b", "cluster.num_nodes=32", "batch.tokens_per_step=2097152"], {"fsdp"}),
    ],
)
def test_the_fastest_strategy_that_fits_is_chosen(words: list[str], options: set[str]) -> None:
    asked = config_of(*OF_A_NODE, *words, "recompute=every_block", "batch.micro_batch_sequences=auto", "strategy=auto")
    chosen, line = with_strategy(asked)
    assert chosen.strategy.word in options
    assert line is not None
    assert f"strategy=auto: {chosen.strategy.word} takes " in line
    best = weighed(chosen)
    assert best is not None
    for other in ("fsdp", "hsdp", "fsdp_tensor"):
        tried = weighed(asked, [f"strategy={other}"])
        assert tried is None or not tried.fits or (best.cost or 0) <= 1.02 * (tried.cost or 0)


def test_a_typed_micro_batch_has_to_fit_and_a_typed_recomputation_stays(only_known: None) -> None:
    one = ("cluster.devices_per_node=1", "trainer.devices=1", "strategy=single", "batch.tokens_per_step=16384")
    words = (*OF_A_NODE, *one, "model=llama_3_2_1b", "batch.micro_batch_sequences=2")
    for word in ("recompute=none", "recompute=every_block"):
        typed = config_of(*words, word)
        assert with_recompute(typed) == (typed, None)
        num_bytes = memory_of(setting_on_paper(typed), typed.divided(typed.batch)).total
        chosen, reason = with_recompute(config_of(*words, "recompute=auto", f"cluster.memory_bytes={num_bytes}"))
        assert chosen.recompute.word == word.partition("=")[2]
        assert reason is not None
        assert "16,384 tokens at a time fit" in reason


@pytest.mark.parametrize(
    ("words", "is_compiled"),
    [
        ([], True),  # the default budget
        (["budget.tokens=120K"], False),  # README's command for one's own text
        (["budget.tokens=120K", "compile=model"], True),
        (["budget.hours=0.03"], False),
        (["budget.hours=1"], True),
        (["cluster=h100_8x", "model=gpt2_124m", "batch.tokens_per_step=524288", "budget.tokens=10B"], True),
    ],
)
def test_auto_compiles_where_the_budget_repays_it(words: list[str], *, is_compiled: bool, tmp_path: Path) -> None:
    (run,) = planned_runs([*words, f"run.cache={tmp_path}"])
    lines = [line for line in run.advice.lines if line.startswith("compile=auto: none")]
    assert (run.plan.is_compiled, len(lines)) == (is_compiled, int(not is_compiled))
