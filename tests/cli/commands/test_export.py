"""From a random Qwen 3 of transformers through ten steps of training and back, as a person types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lmtrain.cli.commands.export import bytes_per_exported_value, export
from lmtrain.cli.commands.generate import generate
from lmtrain.cli.commands.import_hf import import_model
from lmtrain.errors import ConfigurationError
from tests import forked, tiny
from tests.interop.hugging_face import saved, weights_of

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
def test_the_card_tells_the_facts_of_the_run(trained: Path) -> None:
    assert export(["hf", str(trained / "runs/a/checkpoints/step_00000010"), str(trained / "card"), "--json"]) == 0
    card = (trained / "card" / "README.md").read_text()
    manifest = json.loads((trained / "runs/a/dataset.json").read_text())
    for fact in (
        "| 2,560 tokens, 10 optimizer steps |",
        f"`{manifest['fingerprint']}`",
        "validation/bits_per_byte",
        "| in |",
    ):
        assert fact in card


def test_a_plan_knows_the_bytes_of_an_exported_weight() -> None:
    assert bytes_per_exported_value(["hf", "runs/a", "out"]) is None
    assert bytes_per_exported_value(["hf", "runs/a", "out", "--dtype", "bf16"]) == 2


@pytest.mark.slow
def test_half_precision_and_shards_are_chosen_on_the_command_line(trained: Path) -> None:
    words = ["hf", str(trained / "runs/a"), str(trained / "bf16"), "--dtype", "bf16", "--max-shard-bytes", "30KB"]
    assert export(words) == 0
    written = weights_of(trained / "bf16")
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}
    assert (trained / "bf16" / "model.safetensors.index.json").is_file()


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
        ConfigurationError, match=r"model\.activation=relu_squared, .*no class of transformers has this"
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


def test_a_wrong_source_or_place_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom lmtrain.cli.commands.export import export\n"
        "for out in ('.', 'out'):\n"
        "    try:\n        export(['hf', 'nowhere', out])\n"
        "    except ValueError as problem:\n        print(problem, 'torch' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    place, source = ran.stdout.splitlines()
    assert place == "OUT=. is there already, and nothing is overwritten; name another, or move it. False"
    assert source.startswith("SOURCE=nowhere must be a run")
    assert source.endswith(". False")
