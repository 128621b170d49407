import json

from lmtrain.callbacks.run_manifest import RunManifest
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.tokenizers.loading import load_tokenizer


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
    devices = json.loads((attempt / "devices.json").read_text())
    assert (devices["type"], devices["num_devices"], devices["precision"]) == ("cpu", 1, "32-true")
