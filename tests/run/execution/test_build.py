from collections.abc import Callable

import pytest

from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.models.base import unchanged
from lmtrain.run.execution.build import build_run
from lmtrain.run.stored_runs.job import Job

MakeJob = Callable[..., Job]


def test_a_plan_counts_what_the_config_says(tiny_job: MakeJob) -> None:
    run = build_run(tiny_job("batch.micro_batch_sequences=2", "trainer.devices=2"), rank=1, log=None)
    plan, model = run.context.plan, run.module.language_model
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    assert plan.shape.num_parameters == num_parameters
    assert (plan.batch.accumulation_micro_steps, plan.batch.num_ranks, plan.batch.tokens_per_step) == (1, 2, 64)
    assert (plan.horizon.steps, plan.horizon.tokens, plan.horizon.limited_by) == (3, 192, "steps")
    assert plan.horizon.flops == 192 * flops_per_token(model.shape(), 16).palm
    assert (plan.peak_flops, plan.peak_source) == (1e12, "cluster.peak_flops")
    assert plan.speed is not None
    assert plan.speed.step_seconds == pytest.approx(64 * plan.flops_per_token.palm / (2 * 1e12 * 0.4))
    assert plan.train_tokens == run.datamodule.dataset.split("train").num_tokens
    assert (run.context.rank, run.context.is_main_process) == (1, False)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model.vocab_size=100"],
            "model.vocab_size: must be at least the tokenizer's 257 entries, got 100. Did you mean 257?",
        ),
        (
            ["model.max_context_tokens=8"],
            "batch.context_tokens: must be at most model.max_context_tokens=8, got 16.",
        ),
        (["+trainer.precision=16-mixed"], "trainer.precision=16-mixed has no effect"),
        (["+strategy.num_ranks=4"], "strategy.num_ranks=4 has no effect"),
    ],
)
def test_what_cannot_be_is_refused_in_our_words(tiny_job: MakeJob, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        build_run(tiny_job(*overrides), rank=0, log=None)
    assert str(refused.value).startswith(message)


def test_tokens_of_another_tokenizer_are_refused(tiny_job: MakeJob) -> None:
    job = tiny_job()
    folder = build_run(job, rank=0, log=None).datamodule.dataset.folder
    meta = folder / "tokenizer" / "tokenizer.meta.json"
    meta.write_text(meta.read_text().replace("257", "258"))
    with pytest.raises(DataError, match="was encoded with tokenizer"):
        build_run(job, rank=0, log=None)


def test_each_start_of_a_short_run_leaves_its_model_uncompiled(
    tiny_job: MakeJob, capfd: pytest.CaptureFixture[str]
) -> None:
    run = build_run(tiny_job("compile=auto"), rank=0, log=None)
    assert run.context.plan.is_compiled is False
    assert run.module._transforms.compile is unchanged
    assert run.context.resolved["compile"] == "none"
    assert "compile=auto: none, as compiling takes about 61 s" in capfd.readouterr().out
