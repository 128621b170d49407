from dataclasses import replace

import pytest

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.run.planning import bench_changes
from lmtrain.run.planning import setting as planned_setting
from lmtrain.run.planning.bench_changes import changes
from tests.accounting.observed.test_step_parts import BENCH, with_parts
from tests.configs import config_of

WHOLE = plan_batches(Batch(context_tokens=256, tokens_per_step=2048))


def words(*overrides: str, bench=BENCH, can_compile: bool = True, free_threads: int = 0) -> list[str]:
    config = config_of(*overrides)
    found = changes(config, replace(bench, batch=WHOLE), can_compile=can_compile, free_threads=free_threads)
    return [" ".join(change.words) for change in found]


def test_a_usual_config_is_only_told_of_larger_steps():
    assert words() == ["batch.tokens_per_step=4096"]


@pytest.mark.parametrize(
    ("chosen", "advised"),
    [
        ("compile=none", "compile=auto"),
        ("recompute=every_block", "recompute=none"),
        ("attention=eager", "attention=auto"),
        ("strategy=ddp", "strategy=auto"),
        ("trainer.detect_anomaly=true", "trainer.detect_anomaly=false"),
        ("deterministic=true", "deterministic=false"),
    ],
)
def test_a_choice_that_is_usually_slower_is_named(chosen: str, advised: str):
    assert advised in words(chosen)


def test_only_what_compiles_a_model_by_itself_says_so():
    named = changes(config_of("compile=none", "attention=eager"), BENCH, can_compile=True, free_threads=0)
    assert {change.words[0]: change.compiles for change in named} == {
        "compile=auto": True,
        "attention=auto": None,
        f"batch.tokens_per_step={2 * BENCH.batch.tokens_per_step}": None,
    }


def test_a_precision_is_named_where_auto_would_be_another(monkeypatch):
    for flags, expected in ((["avx512_bf16"], True), ([], False)):
        monkeypatch.setattr(planned_setting, "bf16_flags", lambda flags=flags: flags)
        assert ("precision=auto" in words("precision=fp32")) is expected
    assert "precision=auto" not in words("precision=bf16_true")


def test_nothing_is_said_of_a_compiler_that_is_not_there():
    slow = with_parts(optimizer=0.09, whole=0.2)
    assert "optimizer.compile_update=true" in words(bench=slow)
    assert not {"compile=auto", "optimizer.compile_update=true"} & set(
        words("compile=none", bench=slow, can_compile=False)
    )


def test_threads_are_named_where_some_are_idle():
    assert "trainer.cpu_threads=null" in words("trainer.cpu_threads=1", free_threads=1)
    assert "trainer.cpu_threads=null" not in words(free_threads=1)


def test_waiting_for_data_or_the_host_names_what_spares_it():
    waits = with_parts(data=0.05, whole=0.16)
    assert words(bench=waits)[0] == "data.num_workers=2"
    assert words("data.num_workers=2", bench=waits)[0] == "data.num_workers=4"
    talks = with_parts(whole=0.15)
    assert words("run.log_every_steps=1", bench=talks)[0] == "run.log_every_steps=10"
    assert "run.log_every_steps=10" not in words(bench=talks)


def test_a_slow_choice_is_tried_before_what_can_save_little():
    assert words("recompute=every_block", bench=with_parts(optimizer=0.01, whole=0.1))[0] == "recompute=none"


def test_every_advice_on_the_batch_is_one_that_divides():
    for micro, asked in ((1, 2), (2, 4), (4, 8)):
        batch = plan_batches(Batch(context_tokens=256, tokens_per_step=2048, micro_batch_sequences=micro))
        config = config_of(f"batch.micro_batch_sequences={micro}")
        (change,) = bench_changes._batches(config, replace(BENCH, batch=batch))  # pyright: ignore
        assert change.words == (f"batch.micro_batch_sequences={asked}",)
    odd = plan_batches(Batch(context_tokens=256, tokens_per_step=9 * 256, micro_batch_sequences=1))
    (change,) = bench_changes._batches(config_of(), replace(BENCH, batch=odd))  # pyright: ignore
    assert change.words == ("batch.micro_batch_sequences=3",)
    assert words("batch.micro_batch_sequences=8") == ["batch.tokens_per_step=4096 batch.micro_batch_sequences=16"]


def test_what_a_change_can_save_at_most_is_arithmetic():
    slow = with_parts(optimizer=0.09, whole=0.2)
    config = config_of()
    by_words = {
        change.words: change for change in changes(config, replace(slow, batch=WHOLE), can_compile=True, free_threads=0)
    }
    shares = slow.parts.shares()
    fixed = shares["optimizer"] + shares["host"]
    assert by_words["batch.tokens_per_step=4096",].most_saved == pytest.approx(fixed / 2)
