import json

import pytest

from lmtrain.callbacks.run_manifest import RunManifest
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.errors import ConfigurationError
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.loading import load_tokenizer
from tests.callbacks.tiny_run import AtStep


def test_plan_data_and_devices_lie_beside_the_results(make_run):
    run = make_run(steps=1)
    attempt = run.context.folder / "attempts" / "2"
    attempt.mkdir(parents=True)
    run.fit(RunManifest(context=run.context), TokenBudget(context=run.context))
    plan = json.loads((run.context.folder / "plan.json").read_text())
    assert plan["horizon"]["steps"] == 1
    dataset = json.loads((run.context.folder / "dataset.json").read_text())
    assert dataset["fingerprint"] == run.context.dataset.manifest.fingerprint
    assert load_tokenizer(run.context.folder / "tokenizer").fingerprint == run.context.tokenizer.fingerprint
    noted = {"data": str(run.context.dataset.folder), "fingerprint": dataset["fingerprint"]}
    assert json.loads((attempt / "data.json").read_text()) == noted
    devices = json.loads((attempt / "devices.json").read_text())
    assert (devices["type"], devices["num_devices"], devices["precision"]) == ("cpu", 1, "32-true")


def test_a_tokenizer_that_checkpoints_know_is_never_overwritten(make_run):
    run = make_run(steps=1)
    (run.context.folder / "checkpoints" / "step_00000001").mkdir(parents=True)
    ByteLevelTokenizer(vocab_size=900).save(run.context.folder / "tokenizer")
    with pytest.raises(ConfigurationError, match="checkpoints there know its ids alone; start a new run"):
        run.fit(RunManifest(context=run.context))
    assert load_tokenizer(run.context.folder / "tokenizer").vocab_size == 900


def test_under_a_budget_of_time_the_plan_ends_where_the_run_did(make_run):
    run = make_run(steps=100)
    run.context.last_step.seconds = 3600.0

    def estimate(steps):
        def change(_):
            run.context.last_step.steps = steps  # as the budget of time would

        return change

    seen = []
    read = AtStep(3, lambda _: seen.append(json.loads((run.context.folder / "plan.json").read_text())["horizon"]))
    manifest = RunManifest(context=run.context)
    run.fit(AtStep(2, estimate(40)), AtStep(3, estimate(3)), manifest, read, TokenBudget(context=run.context))
    assert seen[0]["steps"] == 3, "a run under way does not tell of its first estimate"
    horizon = json.loads((run.context.folder / "plan.json").read_text())["horizon"]
    assert horizon["steps"] == 3
    assert horizon["tokens"] == 3 * run.context.plan.batch.tokens_per_step
