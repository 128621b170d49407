import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from itertools import chain

import pytest
import yaml

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.compose import compose_config, for_each_config
from lmtrain.run.compose.foreign.equivalents import OF_A_BASE, answered_together, equivalent
from lmtrain.run.compose.foreign.table import (
    Equivalent,
    filled,
    name_elsewhere,
    settings_elsewhere,
)
from lmtrain.run.compose.paths import conf_folder, key_of, without
from lmtrain.run.compose.unknown_words import leaf_keys, options_that_take, options_with, target_of
from lmtrain.run.schema.check import refuse_foreign
from lmtrain.run.schema.source_signatures import setting_names
from lmtrain.search.search_settings import SearchSettings

SWEEPS = frozenset(f"sweep.{each.name}" for each in fields(SearchSettings))
# A value of each answer where 3 is none.
VALUES = {
    **dict.fromkeys(("optimizer.beta1={}", "optimizer.beta2={}", "weight_average=ema weight_average.decay={}"), "0.9"),
    **dict.fromkeys(("schedule.warmup_fraction={}", "schedule.warmdown_fraction={}"), "0.1"),
    **dict.fromkeys(("schedule.final_fraction={}", "data.folder.validation_fraction={}"), "0.1"),
    "adapter=lora adapter.dropout={} ?init_from=runs/base": "0.1",
    "adapter=lora adapter.start={} ?init_from=runs/base": "null",
    "batch.context_tokens={}": "512",
    "tokenizer.vocab_size={}": "4096",
    "model.num_kv_heads={}": "1",
    "model=nano model.window_pattern={}": "SL",
    "data.cache={}": "null",
    "callbacks=[default,push] callbacks.push.repository={}": "a/b",
    "precision=fp8 precision.recipe={}": "rowwise",
    "task=dpo objective.beta={} ?source.paths=[pairs.jsonl] ?init_from=runs/base": "0.1",
}
# Of settings of several programs: values that they take.
SPECIAL = {
    **dict.fromkeys(("data", "weights", "architectures", "tokenizers", "folders"), "gpt2"),
    "smallest_lr": "1e-5",
    "times": "00:03:45:00",
    "betas": "[0.9,0.95]",
    "adapted_layers": "[q_proj,down_proj]",
    "durations": "100ba",
}


def is_key(key: str) -> bool:
    return bool(options_with(key, conf=conf_folder()) or options_that_take(key, conf=conf_folder()))


@cache
def own_keys() -> frozenset[str]:
    files = [path for path in conf_folder().glob("*/*.yaml") if path.parent.name not in ("pipeline", "hydra")]
    taken = {f"{path.parent.name}.{name}" for path in files for name in setting_names(target_of(path))}
    written = {
        f"{path.parent.name}.{key}"
        for path in files
        if "@package _global_" not in path.read_text()
        for key in leaf_keys(yaml.safe_load(path.read_text()) or {})
    }
    return frozenset(SWEEPS | {*leaf_keys(compose_config([]))} | taken | written)


def answers() -> Iterator[tuple[str, ...]]:
    """Give the words of every answer of the table, for one of its names and a value."""
    table = settings_elsewhere()
    for answer in table.words.values():
        found = filled(answer, VALUES.get(answer.partition(" # ")[0], "3"))
        yield (*found.words, *found.implied)
    for name, choice in table.choices.items():
        for value in choice.answers:
            found = equivalent(name, value or "3", [])
            yield (*found.words, *found.implied)
    for by_value in table.values.values():
        for answer in by_value.values():
            found = filled(answer, "gpt2")
            yield (*found.words, *found.implied)
    for name, kind in table.special.items():
        found = equivalent(name, SPECIAL.get(kind, "8"), [])
        yield (*found.words, *found.implied)


def test_a_name_of_elsewhere_is_none_of_our_keys() -> None:
    of_our_code = {
        "trainer.precision",
        "trainer.strategy",
        "precision.device_type",
        "scaling.config",
        "data.batch",
        "momentum_schedule.momentum",
    }
    of_our_code |= {key for key in own_keys() if key.partition(".")[2] in ("total_steps", "tokens_per_step")}
    parts = {"batch", "run", "sweep", "health"}  # one value in their place is refused behind composing
    keys = (own_keys() - of_our_code - parts) | {"batch.tokens_per_step"}
    assert not [key for key in keys if name_elsewhere(key)]
    assert name_elsewhere("data.sources.lr.lr") == ""


def groups_of(word: str) -> set[str]:
    """Return the groups that an option chooses: its own, and those of a recipe."""
    group, _, option = word.partition("=")
    file = conf_folder() / group / f"{option}.yaml"
    return {group, *re.findall(r"override /(\w+):", file.read_text())} if file.is_file() else set()


def commands(answered: Iterable[Sequence[str]]) -> list[list[str]]:
    """Put answers together into few commands, each with one option of a group and one value of a key."""
    made: list[list[str]] = []
    for words in dict.fromkeys(answered):
        fitting = (command for command in made if not _at_odds(command, words) and not _at_odds(words, command))
        command = next(fitting, None)
        if command is None:
            made.append(command := [])
        command += [word for word in words if word not in command]
    return made


def _at_odds(some: Sequence[str], others: Sequence[str]) -> bool:
    chosen_here = set().union(*map(groups_of, some)) | {key_of(word) for word in some if "=[default," in word}
    return bool(
        {*map(key_of, some)} & {*map(key_of, others)} or chosen_here & {key_of(w).split(".")[0] for w in others}
    )


def test_every_answer_is_a_command_that_composes() -> None:
    found = [*answers()]
    for command in commands(found):
        typed = without(command, ("sweep", "init_from", "resume"))
        typed += ["source.paths=[notes]"] if "source=files" in typed else []
        typed += ["source.name=a/b"] if "source=hf_dataset" in typed else []
        for_each_config(
            lambda config, _: refuse_foreign(config, allowed=()), parse_arguments(typed), config_name="train"
        )
    unknown = {key_of(word) for word in chain(*found)} - own_keys()
    assert not {key for key in unknown if not (conf_folder() / key).is_dir() and not is_key(key)}


def test_an_option_in_the_place_of_another_takes_no_settings_of_that_one() -> None:
    answers = [Equivalent(("strategy=fsdp",)), Equivalent(("strategy=pipeline", "strategy.num_stages=2", "seed=1"))]
    assert answered_together(answers, []).words == ("strategy=fsdp", "seed=1")
    away, every = Equivalent(("~callbacks.validation",)), Equivalent(("callbacks.validation.every_steps=9",))
    assert answered_together([away, every], []).words == away.words
    assert answered_together([every, away], []).words == every.words
    tensor = Equivalent(("strategy=tensor", "strategy.tensor_size=2"))
    assert answered_together([answers[0], tensor], []).words == ("strategy=fsdp_tensor", "strategy.tensor_size=2")


def test_a_key_is_answered_once_lists_of_options_together_and_implied_words_yield_to_typed_ones() -> None:
    lora = Equivalent(("adapter=lora", "adapter.rank=4"), implied=("init_from=runs/base",))
    lists = [Equivalent((f"callbacks=[default,{name}]",)) for name in ("push", "early_stopping")]
    warm = Equivalent(("schedule.warmup_steps=3", "schedule.warmup_fraction=0.1", "schedule.warmup_steps=4"))
    found = answered_together([lora, *lists, warm], [])
    assert found.words[2:] == (
        "callbacks=[default,push,early_stopping]",
        "schedule.warmup_steps=3",
        "init_from=runs/base",
    )
    assert found.instead == dict.fromkeys(warm.words[1:], "schedule.warmup_steps=3")
    assert found.notes == (OF_A_BASE,)
    assert answered_together([lora], ["init_from=runs/mine"]).words == lora.words
    assert answered_together([lora], ["adapter=lora", "init_from=a"]).words == ("adapter.rank=4",)  # typed already


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hydra/sweeper/sampler=TPE"], "sweep.sampler=tpe"),
        (["hydra/sweeper/sampler=gp"], "sweep.sampler=gp is none of tpe, cmaes, grid, random"),
        (["hydra/sweeper/sampler=tpee"], "Did you mean 'tpe'?"),
        (["hydra/launcher=joblib"], "sweep.parallel=4"),
        (["accelerator=tpu"], "it trains on CPUs and CUDA GPUs; leave it out."),
        (["trainer.accelerator=tpu"], "it trains on CPUs and CUDA GPUs; leave it out."),
        (["trainer.accelerator=cuda:1"], "trainer.accelerator has no such value; write trainer.accelerator=gpu"),
        (["device=cuda:1"], "CUDA_VISIBLE_DEVICES=1 before the command chooses the second one"),
        (["--device", "nothing"], "trainer.accelerator=nothing is none of auto, cpu, gpu, cuda, mps."),
    ],
)
def test_a_value_that_is_nowhere_gets_what_there_is(words: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_arguments(words)
    assert said in str(refused.value)
    assert not str(refused.value).endswith("?.")
