"""A training step with experts against a dense one with as many FLOPs a token, in turns on this CPU.

The models are `model=mixtral_tiny` and the same with one feed-forward as wide as a token's experts together. CPU
seconds of all threads are compared: other processes take turns with this one.

    OMP_WAIT_POLICY=passive python benchmarks/questions/experts.py --sequences 8 --profile
"""

import argparse
import statistics
import time
from functools import partial

import torch

from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.base import LanguageModel
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts

VOCAB_SIZE, CONTEXT_TOKENS, WARM_UP_STEPS = 4096, 256, 3
EXPERTS = Experts(num_experts=8, num_experts_per_token=2, load_balance_weight=0.02, router_z_weight=0.001)
make = partial(Llama, width=128, num_layers=4, num_heads=2, vocab_size=VOCAB_SIZE, max_context_tokens=CONTEXT_TOKENS)


class Steps:
    """Steps of one model on one batch of ids [B, T + 1]."""

    def __init__(self, model: LanguageModel, ids: torch.Tensor, dtype: torch.dtype) -> None:
        model.initialize_weights(torch.Generator().manual_seed(0))
        self.model, self.ids, self.dtype = model, ids, dtype
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def __call__(self) -> float:
        """Take a step and return its CPU seconds."""
        started = time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            total = self.model(self.ids[:, :-1], self.ids[:, 1:], CrossEntropy())
        (total.objective / total.num_tokens).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.process_time() - started


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name, default in (("--rounds", 30), ("--sequences", 8), ("--threads", 2)):
    parser.add_argument(name, type=int, default=default)
parser.add_argument("--profile", action="store_true")
asked = parser.parse_args()
torch.set_num_threads(asked.threads)
for dtype in (torch.float32, torch.bfloat16):
    ids = torch.randint(VOCAB_SIZE, (asked.sequences, CONTEXT_TOKENS + 1), generator=torch.Generator().manual_seed(1))
    sparse = Steps(make(feed_forward_width=128, experts=EXPERTS), ids, dtype)
    dense = Steps(make(feed_forward_width=256), ids, dtype)
    pairs = [(sparse(), dense()) for _ in range(asked.rounds + WARM_UP_STEPS)][WARM_UP_STEPS:]
    ratio = statistics.median(one / other for one, other in pairs)
    of_sparse, of_dense = (statistics.median(seconds) * 1e3 for seconds in zip(*pairs, strict=True))
    print(f"{dtype}: {of_sparse:.1f} ms with experts, {of_dense:.1f} ms dense, ratio {ratio:.2f}")
    if asked.profile:
        with torch.profiler.profile() as found:
            sparse()
        print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=60))
