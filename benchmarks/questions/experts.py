"""A training step with experts against a dense one with as many FLOPs a token, in turns on this CPU.

The models are `model=mixtral_tiny` and the same with one feed-forward as wide as a token's experts together.

    python benchmarks/questions/experts.py --rounds 30 --profile
"""

import argparse
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "src")]
os.environ["OMP_WAIT_POLICY"] = "passive"  # waiting threads take no CPU seconds

import torch  # noqa: E402

from lmtrain.losses.cross_entropy import CrossEntropy  # noqa: E402
from lmtrain.models.base import LanguageModel  # noqa: E402
from lmtrain.models.llama import Llama  # noqa: E402
from lmtrain.models.mixture_of_experts import Experts  # noqa: E402

VOCAB_SIZE, CONTEXT_TOKENS = 4096, 256
EXPERTS = Experts(num_experts=8, num_experts_per_token=2, load_balance_weight=0.02, router_z_weight=0.001)
make = partial(Llama, width=128, num_layers=4, num_heads=2, vocab_size=VOCAB_SIZE, max_context_tokens=CONTEXT_TOKENS)


class Steps:
    """Steps of one model on one batch."""

    def __init__(self, model: LanguageModel, dtype: torch.dtype) -> None:
        model.initialize_weights(torch.Generator().manual_seed(0))
        self.model, self.dtype = model, dtype
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        ids = torch.randint(VOCAB_SIZE, (asked.sequences, CONTEXT_TOKENS + 1), generator=torch.Generator().manual_seed(1))
        self.batch = ids[:, :-1], ids[:, 1:]

    def __call__(self) -> float:
        """Take a step and return its CPU seconds, of all threads: other processes take turns with this one."""
        started = time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            total = self.model(*self.batch, CrossEntropy())
        (total.objective / total.num_tokens).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.process_time() - started


arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--rounds", type=int, default=30)
arguments.add_argument("--sequences", type=int, default=8)
arguments.add_argument("--threads", type=int, default=2)
arguments.add_argument("--profile", action="store_true")
asked = arguments.parse_args()
torch.set_num_threads(asked.threads)
for dtype in (torch.float32, torch.bfloat16):
    sparse, dense = (
        Steps(make(feed_forward_width=128, experts=EXPERTS), dtype),
        Steps(make(feed_forward_width=256), dtype),
    )
    pairs = [(sparse(), dense()) for _ in range(asked.rounds + 3)][3:]
    ratio = statistics.median(one / other for one, other in pairs)
    seconds = [statistics.median(times) * 1e3 for times in zip(*pairs, strict=True)]
    print(f"{dtype}: {seconds[0]:.1f} ms with experts, {seconds[1]:.1f} ms dense, ratio {ratio:.2f}")
    if asked.profile:
        with torch.profiler.profile() as found:
            sparse()
        print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=60))
