"""What commands refuse: one line with the key and the fix, the right exit code, and nothing on stdout."""

import json
import re

import pytest

from lmtrain.cli.main import main
from tests.report.compared_folder import write

SOURCE = "source=files source.paths=[notes.txt]"
GPT2 = "model=gpt2_124m strategy=fsdp cluster=h100_8x cluster.num_nodes=2 compile=none optimizer=adamw"
# command, exit code, pattern of the message
REFUSALS = [
    ("ls nowhere", 2, "nowhere holds no run; give runs/NAME"),
    ("show", 2, "required: run"),
    ("tail runs", 2, "runs holds 2 runs; name one of them"),
    ("doctor --nodes", 2, "doctor --nodes: must be started once per device.*srun"),
    ("plan cluster.network_bytes_per_second=1e16", 2, "cluster.network_bytes_per_second=1e\\+16 must be.*at most 1e15"),
    ("ledger nowhere", 2, "nowhere is not the folder of a run"),
    ("report nowhere", 2, "nowhere holds no run"),
    ("sync nowhere", 2, "not a run folder"),
    ("ui nowhere", 3, "nothing was tracked there"),
    ("compare runs/a --target nan", 2, "--target.*finite number.*nan"),
    ("compare runs/a --metric speed/mfu_palm", 2, "metric: .*bits_per_byte.*speed/mfu_palm"),
    ("compare runs/a --baseline adm", 2, "baseline: must name one choice.*adm"),
    ("scaling runs", 4, "2 finished runs are too few"),
    ("scaling nowhere", 2, "holds no run"),
    ("data show nowhere --step 1", 2, "nowhere must be a run"),
    ("data show nowhere --step 1 --most 0", 2, "--most.*1 or more.*0"),
    ("data", 2, "data"),
    ("tokenizer tokenizer.vocab_size=266 " + SOURCE, 2, "267"),
    ("tokenizer tokenizer=huggingface " + SOURCE, 2, "tokenizer.name"),
    ("tokenizer tokenizer=huggingface tokenizer.name=./no " + SOURCE, 4, "tokenizer.name=./no"),
    ("tokenizer source=files source.paths=[none.txt]", 4, "none.txt"),
    ("tokenizer bogus=1", 2, "bogus"),
    ("verify nowhere", 4, "nowhere"),
    ("generate nowhere", 2, "nowhere must be a run"),
    ("generate runs/a", 4, "job.json"),
    ("generate nowhere a prompt", 2, "a prompt: too many words.*lmtrain generate --help"),
    ("generate nowhere --temperature -1", 2, "temperature"),
    ("generate nowhere --stop=", 2, "--stop"),
    ("generate nowhere --out a.jsonl", 2, "--out.*--prompts"),
    ("generate nowhere --top-k many", 2, "--top-k"),
    ("chat nowhere", 2, "nowhere must be a run"),
    ("serve nowhere", 2, "nowhere must be a run"),
    ("serve nowhere --host 0.0.0.0", 2, "--host.*--api-key-file"),
    ("serve nowhere --host 0.0.0.0 --api-key-file short", 2, "--api-key-file.*16"),
    ("evaluate nowhere", 2, "nowhere must be a run"),
    ("evaluate runs/a runs/b", 2, "runs/b"),
    ("evaluate nowhere --batch-tokens 0", 2, "--batch-tokens.*1 or more.*0"),
    ("evaluate nowhere --tasks arc", 2, "--tasks needs --core or --chat"),
    ("evaluate nowhere --num-shots 1", 2, "--num-shots needs --lm-eval"),
    ("evaluate nowhere --text short --split test", 2, "--split.*--data"),
    ("evaluate nowhere --texts x", 2, "--texts: .*--help"),
    ("export hf nowhere out", 2, "SOURCE=nowhere must be a run"),
    ("export hf nowhere runs", 2, "OUT=runs"),
    ("export safetensors nowhere out", 2, "safetensors.*hf"),
    ("import hf nowhere out", 2, "nowhere"),
    ("import peft nowhere out", 2, "--base"),
    ("push nowhere me/model", 2, "RUN=.*nowhere must be a run"),
    ("bench trainer.devices=2", 2, "trainer.devices must be 1"),
    ("bench --seconds=0", 2, "--seconds must be above 0"),
    ("calc tenser 3", 2, "Did you mean 'tensor'"),
    ("calc tensor", 2, "shape must .* 4096x4096"),
    ("calc tensor 4096x-1", 2, "shape must be whole numbers"),
    ("calc tensor 1Px1Px1P", 2, "shape must have"),
    ("calc tensor 4096 dtype=bf17", 2, "Did you mean 'bf16'"),
    ("calc matmul 3x4 5x6", 2, "must be 4x6"),
    ("calc matmul 3 3 3 device=h100-sxm", 2, "Did you mean 'NVIDIA H100 80GB HBM3'"),
    ("calc matmul 3 3 3 device=a10 fp8", 2, "no such peak"),
    ("calc matmul 3 3 3 peak_flops=100T", 2, "matmul takes dtype, device"),
    ("parity --ranks=1", 2, "--ranks must be at least 2, got 1"),
    ("parity --tolerance=2", 2, "--tolerance must be above 0 and below 1, got 2"),
    ("parity -m seed=1,2 --draws=2", 2, "--draws: must be 0 with -m, got 2"),
    ("plan cluster.mfu=1.4", 2, "cluster.mfu=1.4 must be above 0 and at most 1"),
    ("plan budget.usd=500", 2, "budget.usd=500 needs a price"),
    ("plan callbacks=[token_budget,early_stopping]", 2, "early_stopping: must be null without validations"),
    ("simulate model=llama_tiny strategy=fsdp", 2, "cluster.device must be in the hardware table"),
    (f"simulate {GPT2} batch.micro_batch_sequences=auto", 2, "micro_batch_sequences must be a number"),
    (f"simulate {GPT2} cluster.device_network_bytes_per_second=null", 2, "cluster.network_bytes_per_second"),
    ("completion tcsh", 2, "bash, zsh, fish"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with two runs without checkpoints, an imported folder and some text, as the working folder."""
    monkeypatch.chdir(tmp_path)
    for name, lr in (("a", 0.1), ("b", 0.2)):
        write(tmp_path / "runs" / name, lr=lr)
        plan = json.loads((tmp_path / "runs" / name / "plan.json").read_text())
        (tmp_path / "runs" / name / "plan.json").write_text(
            json.dumps(plan | {"parameters": {"matmul": 1, "active": 1}})
        )
    (tmp_path / "imported/weights").mkdir(parents=True)
    (tmp_path / "imported/import.json").write_text("{}")
    for name in ("notes.txt", "short"):
        (tmp_path / name).write_text("some text\n")
    return tmp_path


@pytest.mark.parametrize(("words", "code", "pattern"), REFUSALS, ids=[words for words, _, _ in REFUSALS])
def test_a_refusal_is_one_line_with_its_exit_code(folder, capsys, words, code, pattern):
    typed = words.replace("a prompt", "a\0prompt").split()
    assert main([word.replace("\0", " ") for word in typed]) == code
    printed = capsys.readouterr()
    assert re.search(pattern, printed.err), printed.err
    assert len(printed.err.splitlines()) == 1, printed.err
    assert printed.out == ""
