"""The same numbers from Hydra's command line and from plain Python that never imports Hydra, to the last digit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked, tiny
from tests.parity.plain_python import CLIP, CONTEXT_TOKENS, TOKENS_PER_STEP
from tests.parity.test_strategies import SCRIPT

STEPS = 4
PLAIN_LLAMA = [
    "model=llama_3_2_1b",
    "model.width=32",
    "model.num_layers=2",
    "model.num_heads=2",
    "model.num_kv_heads=2",
    "model.feed_forward_width=64",
    "model.vocab_size=512",
    f"model.max_context_tokens={CONTEXT_TOKENS}",
    "model.rope_scaling=null",
    "model.tie_embeddings=false",
]
SAME = [
    *("data=synthetic", "data.folder.vocab_size=512", "data.folder.num_tokens=20000", "data.folder.seed=0"),
    "tokenizer=byte_level",
    *("optimizer=adamw", "optimizer.lr=1e-2", "optimizer.beta1=0.9", "optimizer.beta2=0.999", "optimizer.eps=1e-8"),
    *("optimizer.weight_decay=0", "schedule=constant", f"gradient_clip_norm={CLIP}", "seed=7"),
    *(f"batch.context_tokens={CONTEXT_TOKENS}", f"batch.tokens_per_step={TOKENS_PER_STEP}"),
    *("batch.micro_batch_sequences=2", f"budget.steps={STEPS}", "run.name=a", *tiny.QUIET),
]
WITHOUT_HYDRA = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
assert not {"hydra", "omegaconf"} & set(sys.modules), "plain Python imported Hydra"
"""


@pytest.mark.slow
def test_hydra_and_plain_python_give_the_same_losses(tmp_path: Path) -> None:
    script, words = tiny.PROJECT / "train.py", [*PLAIN_LLAMA, *SAME]
    composed = forked.run(script, words, folder=tmp_path, environment=tiny.environment())
    assert composed.returncode == 0, composed.stderr
    plain = [sys.executable, "-c", WITHOUT_HYDRA, str(SCRIPT), "single", "2", str(STEPS), "fp32"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    by_hand = subprocess.run(plain, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert by_hand.returncode == 0, by_hand.stderr
    expected = [float(text) for text in by_hand.stdout.strip().splitlines()[-1].strip("[]").split(",")]
    assert list(tiny.losses(tmp_path / "runs/a").values()) == expected
