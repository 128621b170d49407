"""Peak memory and CPU time of each loss, forward and backward, beyond what any of them needs.

    python benchmarks/questions/cross_entropy_memory.py                       # 128k words: about a minute and 4 GB
    python benchmarks/questions/cross_entropy_memory.py --num-tokens 4096

Every loss runs in a process of its own, whose peak resident memory is read from the kernel. From it goes what was
resident before the loss (torch, hidden states, head) and the gradients that every loss must return: what is left is
the logits' share. Time is this process's CPU time, of one thread.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

LOSSES = ("cross_entropy", "chunked", "linear")


def main() -> None:
    """Print one table row a loss and dtype."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab-size", type=int, default=128_256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--num-tokens", type=int, default=2048)
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16_mixed"])
    parser.add_argument("--one", nargs=2, metavar=("LOSS", "DTYPE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = (arguments.num_tokens, arguments.vocab_size, arguments.width)
    if arguments.one:
        loss, dtype = arguments.one
        print(json.dumps(measure(loss, dtype, *sizes)))
        return
    print(f"{sizes[0]} tokens, {sizes[1]} words, width {sizes[2]}; MiB beyond inputs and gradients")
    print("| dtype | loss | logits at once | peak MiB | falls by | CPU s | of plain |\n|---|---|---|---|---|---|---|")
    for dtype in arguments.dtypes:
        rows = {loss: _in_a_process(loss, dtype, arguments) for loss in LOSSES}
        plain = rows["cross_entropy"]
        for loss, row in rows.items():
            fall, ratio = 1 - row["peak"] / plain["peak"], row["seconds"] / plain["seconds"]
            print(
                f"| {dtype} | {loss} | {row['logit_tokens']:.0f} tokens | {row['peak'] / 2**20:.0f} | {fall:.1%} "
                f"| {row['seconds']:.2f} | {ratio:.2f} |"
            )


def _in_a_process(loss: str, dtype: str, arguments: argparse.Namespace) -> dict[str, float]:
    sizes = {"num-tokens": arguments.num_tokens, "vocab-size": arguments.vocab_size, "width": arguments.width}
    options = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    command = [sys.executable, __file__, *options, "--one", loss, dtype]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measure(loss_name: str, dtype: str, num_tokens: int, vocab_size: int, width: int) -> dict[str, float]:
    """Return the peak in bytes beyond inputs and gradients, CPU seconds, and tokens whose logits exist at once."""
    import torch

    from lmtrain.losses.chunked import ChunkedCrossEntropy
    from lmtrain.losses.cross_entropy import CrossEntropy
    from lmtrain.losses.linear import LinearCrossEntropy
    from lmtrain.models.head import OutputHead

    torch.set_num_threads(1)
    loss = {"cross_entropy": CrossEntropy, "chunked": ChunkedCrossEntropy, "linear": LinearCrossEntropy}[loss_name]()
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16_mixed")

    def step(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> None:
        with autocast:
            total = loss(OutputHead(weight), hidden, targets)
        (total.objective * 0.5).backward()

    def inputs(num_tokens: int, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = torch.randn(1, num_tokens, width, requires_grad=True)
        weight = torch.empty(vocab_size, width).normal_(std=0.02).requires_grad_()
        return hidden, weight, torch.randint(vocab_size, (1, num_tokens))

    step(*inputs(16, 32))  # what libraries allocate once
    hidden, weight, targets = inputs(num_tokens, vocab_size)
    before = _resident_bytes()
    start = time.process_time()
    step(hidden, weight, targets)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    gradients = 4 * (hidden.numel() + weight.numel())
    return {"peak": peak - before - gradients, "seconds": seconds, "logit_tokens": loss.logit_tokens(num_tokens)}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
