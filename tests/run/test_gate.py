"""One table of refusals at the gate: the command's words, and the key and the fix that the message names."""

import errno
import os
from pathlib import Path

import pytest

from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, EnvironmentProblem
from lmtrain.run import gate
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.gate import check
from lmtrain.run.run_config import read_config

WRONG = {
    # names and types
    "+optimiser=1": r"optimiser=1 .*'optimizer'",
    "seed=-3": r"^seed: must be .*, got -3\. Did you mean 3",
    "gradient_clip_norm=-1": r"^gradient_clip_norm must be above 0, got -1. Did you mean 1.0",
    "batch.micro_batch_sequences=many": r"micro_batch_sequences: must be auto or a whole number or null, got many",
    "batch.context_tokens=banana": r"batch\.context_tokens=banana is not a number",
    "model.qk_norm=3": r"^model\.qk_norm: must be true or false, got 3",
    "trainer.accelerator=foo": r"trainer\.accelerator: must be one of auto, cpu, gpu, cuda, mps, got foo",
    "model._target_=os.system": r"model\._target_=os\.system is not allowed",
    "callbacks.checkpoint.keep_last=no": r"callbacks\.checkpoint\.keep_last=no is not a number",
    "data=shards": r"data\.folder\.path: must be given",
    # ranges
    "model.width=-3": r"model\.width=-3 is below 1",
    "model.width=1e30": r"model\.width=1e\+30 .*at most 16777216",
    "trainer.devices=-1": r"trainer\.devices=-1 is below 1. Did you mean 1",
    "budget.tokens=0": r"budget\.tokens=0 must be above 0",
    "optimizer.lr=-1": r"optimizer\.lr must be at least 0 .* got -1",
    # rules between values
    "batch.tokens_per_step=1000": r"tokens_per_step=1000 .*Did you mean 1024",
    "model.vocab_size=1": r"model\.vocab_size: must .*Did you mean 4096",
    # places of this machine
    "run.name=a/../b": r"run\.name: must be a path",
    "run.root=/proc/runs": r"/proc/runs cannot be written",
    "run.root=here/a.txt/runs": r"here/a\.txt is a file",
    "resume=true": r"^resume: must be one of auto, must, never or a path, got True",
    "resume=nowhere": r"resume: must be auto, must, never, .* got nowhere",
    "init_from=nowhere": r"init_from=nowhere ",
    "data=shards data.folder.path=nowhere": r"data folder nowhere does not exist",
    "source=files source.paths=[nowhere]": r"source\.paths: nowhere does not exist",
    "source=files source.paths=[here] source.validation_paths=[nowhere]": r"source\.validation_paths: nowhere",
}
RIGHT = [
    "model.width=128",
    "+model.window_tokens=64",
    "batch.tokens_per_step=256K",
    "batch.micro_batch_sequences=auto",
    "callbacks.validation=null",
    "run.root=here/to/be/made",
    "resume=must",
    "resume=trained",
    "source=files source.paths=[here]",
    "source=files source.paths=[s3://a/b]",
]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a.txt").write_text("a")
    (tmp_path / "trained" / "checkpoints" / "step_00000009").mkdir(parents=True)


def checked(words: str, *, place: gate.Place = "here"):
    typed = words.split()
    return check(compose_config(typed), typed=typed, place=place)


@pytest.mark.parametrize(("words", "pattern"), WRONG.items())
def test_a_wrong_value_is_refused_by_its_key(words: str, pattern: str) -> None:
    with pytest.raises(LMTRAIN_ERRORS, match=pattern):
        checked(words)


@pytest.mark.parametrize("words", RIGHT)
def test_a_right_value_passes(words: str) -> None:
    checked(words)


def test_a_plan_looks_for_sources_only_where_the_cluster_is_this_machine() -> None:
    with pytest.raises(LMTRAIN_ERRORS, match="nowhere does not exist"):
        checked("source=files source.paths=[nowhere]", place="paper")
    checked("source=files source.paths=[nowhere] cluster=h100_8x", place="paper")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_root_that_is_closed_to_writing_is_refused(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(gate.tempfile, "TemporaryFile", refuse)
    with pytest.raises(EnvironmentProblem, match=r"here/runs cannot be written: .*run\.root"):
        checked("run.root=here/runs")


@pytest.mark.parametrize(
    ("word", "pattern"),
    [
        ("+model.widht=8", r"model\.widht=8 .*'width'"),
        ("+precision.stochastic_rounding=true", r"precision\.stochastic_rounding=True"),
    ],
)
def test_the_parts_of_a_config_are_checked_against_their_code(word: str, pattern: str) -> None:
    with pytest.raises(ConfigurationError, match=pattern):
        read_config(compose_config([word])).checked()


def test_a_checked_config_has_its_amounts_as_numbers() -> None:
    config = read_config(compose_config(["budget.tokens=2M", "gradient_clip_norm=1", "schedule=linear"])).checked()
    assert (config.budget.tokens, config.values["budget"]["tokens"]) == (2_000_000, 2_000_000)
    assert config.gradient_clip_norm == 1.0
    assert read_config(config.values) == config
