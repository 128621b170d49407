import errno
import os
from pathlib import Path

import pytest

from lmtrain.errors import LMTRAIN_ERRORS, EnvironmentProblem
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.execution import typed_places
from lmtrain.run.execution.typed_places import refuse_places

WRONG = {
    "run.name=a/../b": "nearest valid: a/b.",
    "resume=here": "resume=here is neither auto, must, never nor a checkpoint or run folder",
    "resume=nowhere": "resume=nowhere is neither auto, must, never nor a checkpoint or run folder",
    "init_from=nowhere": "init_from=nowhere is neither a run",
    "data.folder.path=nowhere": "data folder nowhere does not exist",
    "source.paths=[nowhere]": "source.paths: nowhere does not exist",
    "source.paths=nowhere": "source.paths: nowhere does not exist",
    "source.validation_paths=[nowhere]": "source.validation_paths: nowhere does not exist",
    "data.folder=nowhere": "data folder nowhere does not exist",
    "run.root=/proc/runs": "/proc/runs cannot be written: ",
    "run.root=here/a.txt/runs": "here/a.txt is a file; set run.root to a folder that can be written.",
}
RIGHT = [
    "run.name=notes",
    "run.root=here/to/be/made",
    "resume=must",
    "resume=trained",
    "init_from=null",
    "source.paths=[here]",
    "source.paths=[s3://a/b]",
]
OPTIONS = {"data": "data=shards", "source": "source=files"}


def look_at(word: str) -> None:
    key = word.partition("=")[0]
    option = OPTIONS.get(key.partition(".")[0])
    refuse_places(compose_config([*([option] if option else []), word]), [word])


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a.txt").write_text("a")
    (tmp_path / "trained" / "checkpoints" / "step_00000009").mkdir(parents=True)


@pytest.mark.parametrize("word", WRONG)
def test_a_place_that_is_not_there_is_refused(word: str) -> None:
    with pytest.raises(LMTRAIN_ERRORS) as refused:
        look_at(word)
    assert WRONG[word] in str(refused.value)


@pytest.mark.parametrize("word", RIGHT)
def test_a_place_that_may_be_is_left_to_what_reads_it(word: str) -> None:
    look_at(word)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.EACCES, "Permission denied; give yourself write permission"),
        (errno.EROFS, "Read-only file system; it is mounted"),
    ],
)
def test_a_root_that_is_closed_to_writing_is_refused(code: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(typed_places.tempfile, "TemporaryFile", refuse)
    with pytest.raises(EnvironmentProblem, match=f"here/runs cannot be written: {said}"):
        look_at("run.root=here/runs")


NEED_A_GPU = {
    "trainer.accelerator=gpu": "this machine has no GPU; nearest valid: trainer.accelerator=auto.",
    "precision=fp8": "8.9 or later, and this machine has none; nearest valid: precision=bf16_mixed",
    "attention=flash": "flash needs an NVIDIA GPU, and this machine has no GPU; nearest valid: attention=auto.",
    "loss=liger": "loss=liger needs an NVIDIA GPU, and this machine has no GPU; nearest valid: loss=chunked.",
    "precision=tf32": "8.0 or later, and this machine has none; nearest valid: precision=fp32.",
}


@pytest.mark.parametrize(("word", "said"), NEED_A_GPU.items())
@pytest.mark.parametrize(("driver", "is_refused"), [("here", False), ("nowhere", True)])
def test_a_gpu_is_refused_where_no_driver_is(
    word: str, said: str, driver: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typed_places, "DRIVERS", (driver,))
    monkeypatch.setattr(typed_places.sys, "platform", "linux")
    refused = False
    try:
        look_at(word)
    except LMTRAIN_ERRORS as problem:
        refused = said in str(problem)
    assert refused == is_refused
