import json
from pathlib import Path
from typing import Any

import pytest

from lmtrain.run.stored_runs.checkpoint_source import find_job
from lmtrain.run.stored_runs.conversed import has_conversed


def made(folder: Path, *, mask: str | None = None, **config: Any) -> Path:
    attempt = folder / "attempts" / "1"
    attempt.mkdir(parents=True)
    job = {"config": {"data": {"folder": {}}, **config}, "overrides": [], "name": folder.name, "root": "runs"}
    (attempt / "job.json").write_text(json.dumps(job))
    (folder / "dataset.json").write_text(json.dumps({"splits": {"train": {"shards": [{"mask_sha256": mask}]}}}))
    return folder


def conversed(run: Path) -> bool:
    return has_conversed(run, find_job(run, key="RUN"))


def test_a_run_on_text_has_not_conversed_unless_one_before_it_has(tmp_path: Path) -> None:
    base, talker = made(tmp_path / "base"), made(tmp_path / "talker", mask="ab")
    assert not conversed(base)
    assert conversed(talker)
    assert not conversed(made(tmp_path / "later", init_from=str(base), resume="auto"))
    checkpoint = talker / "checkpoints" / "step_00000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "meta.json").write_text("{}")
    assert conversed(made(tmp_path / "tuned", init_from=str(talker)))
    assert conversed(made(tmp_path / "fork", resume=str(talker)))
    assert not conversed(made(tmp_path / "ring", init_from=str(tmp_path / "ring")))


@pytest.mark.parametrize("content", ["{", "[]", '{"splits": {"train": null}}'])
def test_where_the_record_does_not_say_the_chat_tokens_stay(content: str, tmp_path: Path) -> None:
    assert conversed(made(tmp_path / "gone", init_from=str(tmp_path / "nowhere")))
    assert conversed(made(tmp_path / "odd", init_from=[3]))
    assert conversed(made(tmp_path / "mixed", data={"folder": {"sources": {}}}))
    (made(tmp_path / "broken") / "dataset.json").write_text(content)
    assert conversed(tmp_path / "broken")
