import json
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.verbs.generate import continue_text, generate
from tests import tiny


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is neither a run"):
        generate([str(tmp_path)])


@pytest.mark.slow
def test_a_run_continues_a_text_alike_for_alike_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished = tiny.train(tmp_path, "budget.steps=2", "run.name=a")
    assert finished.returncode == 0, finished.stderr
    run = tmp_path / "runs/a"
    options = {"prompt": "ab", "num_new_tokens": 8, "temperature": 1.0, "top_k": None}
    first = continue_text(run, seed=1, **options)
    assert first == continue_text(run, seed=1, **options)
    assert first != continue_text(run, seed=2, **options)
    with pytest.raises(ConfigurationError, match=r"--weights ema: .* holds no average of the weights"):
        generate([str(run), "--weights", "ema"])
    assert generate([str(run), "--prompt", "ab", "--num-new-tokens", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == "ab"


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "attempts/1").mkdir(parents=True)
    job = {"config": {}, "overrides": [], "name": "a", "root": str(tmp_path)}
    (tmp_path / "attempts/1/job.json").write_text(json.dumps(job))
    with pytest.raises(ConfigurationError, match="has no checkpoint yet"):
        continue_text(tmp_path, prompt="", num_new_tokens=1, temperature=1.0, top_k=None, seed=0)
