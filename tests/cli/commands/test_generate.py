"""Commands that write: generate and serve."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from lmtrain.cli.commands.generate import generate
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from tests import tiny
from tests.interop.hugging_face import saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    saved("llama", path)
    return path


def written(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, str]:
    assert generate([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_text_is_printed_as_it_comes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [folder, "--prompt", "ab", "--num-new-tokens", 8, "--seed", 3]
    assert generate([*map(str, words)]) == 0
    assert capsys.readouterr().out == "ab" + written(capsys, *words)["text"] + "\n"


def test_a_text_ends_before_a_stop_string(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [folder, "--temperature", 0, "--num-new-tokens", 30]
    whole = written(capsys, *words)["text"]
    assert written(capsys, *words, "--stop", whole[3:5])["text"] == whole[: whole.index(whole[3:5])]


def test_a_file_of_prompts_is_answered_and_nothing_is_overwritten(folder: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"number {n}"}) + "\n\n" for n in range(5)))
    words = [str(folder), "--prompts", str(prompts), "--out", str(out), "--num-new-tokens", "6"]
    assert generate(words) == 0
    lines = {line["index"]: line for line in map(json.loads, out.read_text().splitlines())}
    assert sorted(lines) == [0, 1, 2, 3, 4]
    assert (lines[3]["prompt"], lines[3]["num_new_tokens"]) == ("number 3", 6)
    with pytest.raises(EnvironmentProblem, match=r"--out: .*cannot be written"):
        generate(words)


@pytest.mark.slow
def test_a_run_continues_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished = tiny.train(tmp_path, "budget.steps=2", "run.name=a")
    assert finished.returncode == 0, finished.stderr
    run = tmp_path / "runs/a"
    words = ["--prompt", "ab", "--num-new-tokens", 8, "--temperature", 1]
    first = written(capsys, run, *words)
    assert first == written(capsys, next((run / "checkpoints").iterdir()), *words)
    with pytest.raises(ConfigurationError, match=r"--weights ema: .* holds no average of the weights"):
        generate([str(run), "--weights", "ema"])


def test_bytes_outside_utf8_and_answers_without_a_place_are_one_clear_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"prompt: .*udcff"):
        generate([str(folder), "--prompt", "\udcff"])  # as Python passes on a command line's byte 0xff
    prompts = tmp_path / "in.jsonl"
    prompts.write_text('{"prompt": "a"}')
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        generate([str(folder), "--prompts", str(prompts), "--out", str(tmp_path / "nowhere" / "out.jsonl")])


@pytest.mark.slow
def test_an_answer_that_has_begun_is_finished_after_sigterm(tmp_path):
    saved("llama", tmp_path, max_position_embeddings=2048)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "lmtrain.cli", "serve", str(tmp_path), "--port", str(port), "--device", "cpu"],
        env=tiny.environment(),
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            ends = time.monotonic() + 60
            while not _is_up(client):
                assert time.monotonic() < ends
                time.sleep(0.1)
            body = {"prompt": "ab", "max_tokens": 300, "stream": True, "logit_bias": {"256": -100}}
            with client.stream("POST", "/v1/completions", json=body) as answer:
                lines = answer.iter_lines()
                next(lines)
                process.send_signal(signal.SIGTERM)
                rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]"
            assert '"finish_reason": "length"' in rest[-2]
        assert process.wait(30) == 0
    finally:
        process.kill()


def _is_up(client):
    try:
        return client.get("/health").status_code == 200
    except httpx.ConnectError:
        return False
