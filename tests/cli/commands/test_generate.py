import io
import json
from pathlib import Path

import pytest

from lmtrain.cli.commands.generate import generate
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.inference.loaded_model import LoadedModel
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


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must be a run"):
        generate([str(tmp_path)])


def test_a_prompt_by_itself_gets_its_flag() -> None:
    with pytest.raises(ConfigurationError, match=r"write lmtrain generate runs/x --prompt 'Once upon'\."):
        generate(["runs/x", "Once", "upon"])


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    saved("llama", tmp_path, tokenizer=False)
    with pytest.raises(DataError, match=r"has no tokenizer.json"):
        generate([str(tmp_path)])


def test_text_is_printed_as_it_comes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [folder, "--prompt", "ab", "--num-new-tokens", 8, "--seed", 3]
    assert generate([*map(str, words)]) == 0
    assert capsys.readouterr().out == "ab" + written(capsys, *words)["text"] + "\n"


def test_a_text_beyond_the_context_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate([str(folder), "--prompt", "ab", "--num-new-tokens", "70", "--past-the-end"]) == 0
    assert "of it the newest 64 tokens were read" in capsys.readouterr().err


def test_a_wrong_length_is_refused_before_anything_is_shown(folder, capsys, monkeypatch):
    def fails(*_):
        raise EnvironmentProblem("no memory")

    monkeypatch.setattr(LoadedModel, "engine", fails)
    with pytest.raises(EnvironmentProblem):
        generate([str(folder), "--prompt", "ab"])
    assert capsys.readouterr().out == ""
    with pytest.raises(ConfigurationError, match="num_new_tokens: "):
        generate([str(folder), "--num-new-tokens", "0", "--json"])


def test_seeds_tell_texts_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again, other = (
        written(capsys, folder, "--num-new-tokens", 12, "--temperature", 2, "--seed", seed) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_text_ends_before_a_stop_string(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [folder, "--temperature", 0, "--num-new-tokens", 30]
    whole = written(capsys, *words)["text"]
    assert written(capsys, *words, "--stop", whole[3:5])["text"] == whole[: whole.index(whole[3:5])]


def test_standard_input_is_a_prompt(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert written(capsys, folder, "--prompt", "-", "--num-new-tokens", 2)["prompt"] == "from a pipe"


def test_a_file_of_prompts_goes_on_where_it_was_interrupted(folder: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"number {n}"}) + "\n" for n in range(5)))
    words = [str(folder), "--prompts", str(prompts), "--out", str(out), "--num-new-tokens", "6"]
    assert generate(words) == 0
    whole = {line["index"]: line for line in map(json.loads, out.read_text().splitlines())}
    assert sorted(whole) == [0, 1, 2, 3, 4]
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:2]) + lines[2][:20])  # killed while it wrote
    assert generate(words) == 0
    assert out.read_bytes().startswith(b"".join(lines[:2]))
    assert {line["index"]: line for line in map(json.loads, out.read_text().splitlines())} == whole
    sampled = ["--temperature", "0", "--top-p", "0.5", "--seed", "1", "--stop", "x", "--past-the-end"]
    with pytest.raises(ConfigurationError, match=r"stop=.*seed=0 .*past_the_end=false"):
        generate([*words, *sampled])  # also where every prompt has its answer
    saved("llama", other := tmp_path / "other", seed=1)
    with pytest.raises(ConfigurationError, match=r"model=.*other"):
        generate([str(other), *words[1:]])


def test_no_file_is_answered_with_anothers(folder: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    out.write_text('{"index": 0, "prompt": "b", "text": ""}\n')
    with pytest.raises(DataError, match=r"out.jsonl:1 answers another prompt"):
        generate([str(folder), "--prompts", str(prompts), "--out", str(out)])
    with pytest.raises(ConfigurationError, match="both given"):
        generate([str(folder), "--prompts", str(prompts), "--prompt", "a"])
    with pytest.raises(ConfigurationError, match="has no effect without --prompts"):
        generate([str(folder), "--out", str(out)])


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


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "attempts/1").mkdir(parents=True)
    job = {"config": {}, "overrides": [], "name": "a", "root": str(tmp_path)}
    (tmp_path / "attempts/1/job.json").write_text(json.dumps(job))
    with pytest.raises(ConfigurationError, match="has no checkpoint yet"):
        generate([str(tmp_path)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--stop", ""], "--stop ''"),
    ],
)
def test_wrong_settings_are_refused_before_a_word_is_printed(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        generate(["nowhere", *words])  # nor is the model looked for
    assert capsys.readouterr().out == ""


def test_bytes_outside_utf8_and_answers_without_a_place_are_one_clear_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"prompt: .*udcff"):
        generate([str(folder), "--prompt", "\udcff"])  # as Python passes on a command line's byte 0xff
    prompts = tmp_path / "in.jsonl"
    prompts.write_text('{"prompt": "a"}')
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        generate([str(folder), "--prompts", str(prompts), "--out", str(tmp_path / "nowhere" / "out.jsonl")])
