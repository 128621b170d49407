"""Commands that exchange models: export, import and push."""

import json
from pathlib import Path

import pytest
import torch

from lmtrain.cli.commands.export import export
from lmtrain.cli.commands.generate import generate
from lmtrain.cli.commands.import_hf import import_model
from lmtrain.cli.commands.push import push
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.run.stored_runs import exported_models
from lmtrain.storage.hashed_folder import MANIFEST, damage
from tests import forked, tiny
from tests.interop.hugging_face import saved, weights_of
from tests.interop.test_hub_repository import hub

PROMPT = "The cat sat"


WORDS = ["data=synthetic", "data.folder.vocab_size=257", "data.folder.num_tokens=60000", *tiny.BATCH, *tiny.QUIET]


def train(folder: Path, *words: str, num_ranks: int = 1) -> Path:
    """Train ten steps and return the run."""
    command = [*WORDS, "budget.steps=10", "run.name=a", *words]
    finished = forked.run(
        tiny.PROJECT / "train.py", command, folder=folder, environment=tiny.environment(), num_ranks=num_ranks
    )
    assert finished.returncode == 0, finished.stderr
    return folder / "runs" / "a"


def ours(folder: Path, capsys: pytest.CaptureFixture[str], *, num_new_tokens: int = 30) -> str:
    """Return what `lmtrain generate` writes after the prompt."""
    capsys.readouterr()
    words = ["--temperature", "0", "--num-new-tokens", str(num_new_tokens), "--past-the-end", "--json"]
    assert generate([str(folder), "--prompt", PROMPT, *words]) == 0
    return json.loads(capsys.readouterr().out)["text"]


def greedy(folder: Path, *, num_new_tokens: int = 30) -> str:
    """Return what transformers writes after the prompt, as a person would ask it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    written = model.generate(ids, max_new_tokens=num_new_tokens, do_sample=False, eos_token_id=None)
    return tokenizer.decode(written[0, ids.shape[1] :])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Import a random Qwen 3, train it for ten steps, and return the folder of all."""
    folder = tmp_path_factory.mktemp("qwen3")
    saved("qwen3", folder / "hf")
    assert import_model(["hf", str(folder / "hf"), str(folder / "in")]) == 0
    train(folder, "init_from=in", "optimizer.lr=1e-3")
    return folder


@pytest.mark.slow
def test_a_model_of_transformers_is_trained_on_and_writes_the_same_text_there(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(["hf", str(trained / "runs/a"), str(trained / "out")]) == 0
    assert greedy(trained / "out") == ours(trained / "runs/a", capsys) == ours(trained / "out", capsys)
    before, after = weights_of(trained / "hf"), weights_of(trained / "out")
    assert before.keys() == after.keys()
    changes = [(after[name] - before[name]).abs().max().item() for name in before]
    assert all(1e-5 < change < 0.05 for change in changes), "ten steps from the imported weights, not from others"


@pytest.mark.slow
def test_half_precision_is_chosen_on_the_command_line(trained: Path) -> None:
    assert export(["hf", str(trained / "runs/a"), str(trained / "bf16"), "--dtype", "bf16"]) == 0
    assert {tensor.dtype for tensor in weights_of(trained / "bf16").values()} == {torch.bfloat16}


@pytest.mark.slow
def test_an_adapter_names_a_base_that_loads(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from peft import AutoPeftModelForCausalLM

    run = train(trained, "adapter=lora", "init_from=in", "run.name=adapted").with_name("adapted")
    monkeypatch.chdir(trained)
    assert export(["peft", str(run), str(trained / "adapter")]) == 0
    model = AutoPeftModelForCausalLM.from_pretrained(trained / "adapter")
    assert model.peft_config["default"].base_model_name_or_path == str(trained / "hf")


@pytest.mark.slow
def test_gguf_is_one_file_and_the_folder_between_goes(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The weights of a run read back by the package of llama.cpp, in half precision."""
    import gguf

    before = set(trained.iterdir())
    assert export(["gguf", str(trained / "runs/a"), str(trained / "a.gguf"), "--outtype", "f16"]) == 0
    assert set(trained.iterdir()) - before == {trained / "a.gguf"}
    assert "for llama.cpp" in capsys.readouterr().out
    reader = gguf.GGUFReader(trained / "a.gguf")
    assert {tensor.tensor_type.name for tensor in reader.tensors} == {"F16", "F32"}
    assert reader.fields["general.architecture"].contents() == "qwen3"
    with pytest.raises(ConfigurationError, match=r"OUT=.*a\.gguf is there already"):
        export(["gguf", str(trained / "runs/a"), str(trained / "a.gguf")])


@pytest.mark.slow
def test_an_import_is_exported_to_the_bit_with_its_own_files(trained: Path) -> None:
    assert export(["hf", str(trained / "in"), str(trained / "back")]) == 0
    before, after = weights_of(trained / "hf"), weights_of(trained / "back")
    assert all(torch.equal(before[name], after[name]) for name in before)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (trained / "back" / name).read_bytes() == (trained / "hf" / name).read_bytes()


def test_a_run_that_no_class_computes_is_refused_for_gguf_before_anything_is_read(
    tmp_path: Path,
) -> None:
    from lmtrain.run.compose.compose import compose_config
    from tests.run.stored_runs.test_find_run import run_folder

    run = run_folder(tmp_path / "a", 5)
    job = json.loads((run / "attempts/10/job.json").read_text()) | {"config": compose_config(["tokenizer=byte_level"])}
    (run / "attempts/10/job.json").write_text(json.dumps(job))
    with pytest.raises(
        ConfigurationError, match=r"model\.activation=relu_squared, .*not supported by any class of transformers"
    ):
        export(["gguf", str(run), str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.distributed
@pytest.mark.slow
def test_a_sharded_checkpoint_of_experts_is_exported_and_computes_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two ranks of FSDP2 train a mixture of experts; transformers writes what one process here writes."""
    model = ["model=mixtral_tiny", "model.width=32", "model.num_layers=2", "model.feed_forward_width=48"]
    model += ["model.num_heads=2", "model.experts.num_experts=5", "tokenizer=byte_level"]
    run = train(tmp_path, *model, "strategy=fsdp", "trainer.devices=2", "trainer.accelerator=cpu", num_ranks=2)
    assert list(run.glob("checkpoints/*/sharded/*.distcp"))
    assert export(["hf", str(run), str(tmp_path / "out")]) == 0
    assert greedy(tmp_path / "out", num_new_tokens=20) == ours(run, capsys, num_new_tokens=20)


def test_a_truncated_file_is_one_line_and_exit_code_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lmtrain.cli.main import main

    saved("llama", tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    capsys.readouterr()
    assert main(["import", "hf", str(tmp_path / "hf"), str(tmp_path / "in")]) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith(f"lmtrain: {file} is ")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


SECRET = "hf_" + "Ab3dEf9hIj" * 3 + "KlMn"


__all__ = ["hub"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    finished = tiny.train(folder, "budget.steps=4", "run.name=a", "tokenizer.chat=true")
    assert finished.returncode == 0, finished.stderr
    return folder / "runs" / "a"


def sent(hub, words, monkeypatch, capsys) -> dict[str, bytes]:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert push([str(word) for word in words]) == 0
    assert SECRET not in capsys.readouterr().out
    return {path: content for path, content in hub.repositories["me/model"].items() if path != ".gitattributes"}


def test_a_bundle_is_what_others_load_and_the_same_again_sends_nothing(hub, run, tmp_path, monkeypatch, capsys) -> None:
    files = sent(hub, [run, "me/model"], monkeypatch, capsys)
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md", MANIFEST} <= set(files)
    assert files["README.md"].decode().count("# a\n") == 1
    for path, content in files.items():
        (tmp_path / path).write_bytes(content)
    assert damage(tmp_path) is None, "every file fits the manifest"
    num_commits = hub.num_commits
    sent(hub, [run, "me/model"], monkeypatch, capsys)
    assert hub.num_commits == num_commits
    assert [path.name for path in (run / ".push").iterdir()] == ["push.lock"]


def test_a_secret_in_a_file_that_must_not_change_stops_it(hub, run, monkeypatch, capsys) -> None:

    monkeypatch.setattr(exported_models, "redact_text", lambda text: text.replace("model", "[redacted]"))
    with pytest.raises(EnvironmentProblem, match="seems to hold a secret, so nothing was sent"):
        sent(hub, [run, "me/model"], monkeypatch, capsys)
    assert hub.repositories == {}
