"""Known numbers next to ours, for results/accounting_oracles.md: `python benchmarks/questions/accounting_oracles.py`.

A reference is a published figure, or one worked out by hand from published ones; where a text in circulation has
another, its mistake is named. Exits 1 where a figure of ours is further from its reference than the reference is exact.
"""

import io
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import accounting_rows as rows
from benchmarks.harness.accounting_row import Row
from benchmarks.harness.fleet_rows import fleets, matrix_products
from benchmarks.harness.published_runs import published_runs
from lmtrain.cli.commands.calc import calc

PAGE = Path(__file__).parents[1] / "results" / "accounting_oracles.md"
HEADER = """# Known numbers, and ours

Written by `python benchmarks/questions/accounting_oracles.py`: nothing here is typed by hand but the references.
A reference is a published figure, or worked out by hand from published ones; "exact" means equal to the last digit that
it has. Where a text in circulation says otherwise, the last column names its mistake.
"""
CALCULATORS = """
## To calculate your own

{answers}
Tokens a parameter are those of each parameter active for a token, all of a dense model, in plans, fleets and
`budget.tokens_per_parameter`: Chinchilla's 20 is of C = 6 N D, in which idle experts cost nothing. OLMoE 1B-7B on 138B
tokens has 108 an active parameter. A plan with `init_from` or frozen weights (an adapter) leaves that ratio and the
models of the same FLOPs out: the optimum is of training from scratch.

A run's terms follow from one another (`lmtrain plan --help`). FLOPs, dollars without devices, a ratio of tokens to
parameters, a precision and a range of MFU:

```
{commands}
```
"""
ANSWERS = ("lmtrain calc tensor 49152x12288", "lmtrain calc matmul 8192 8192 8192")
COMMANDS = (
    "lmtrain plan cluster=h100_8x cluster.num_nodes=2000 fleet.flops=3.8e25",
    "lmtrain plan cluster=h100_8x fleet.num_devices=null fleet.usd_per_gpu_hour=3 fleet.usd=1M",
    "lmtrain plan cluster=h100_8x fleet.num_parameters=8B fleet.tokens_per_parameter=20 precision=fp8",
    "lmtrain plan cluster=h100_8x fleet.num_parameters=8B fleet.tokens=160B fleet.mfu=0.3-0.5",
)


@dataclass(frozen=True)
class Section:
    """A heading, a line on where the references are from, and the rows below it."""

    title: str
    source: str
    rows: list[Row]


def sections() -> list[Section]:
    """Compute every figure."""
    return [
        Section("Hardware: dense peaks, memory, bandwidth", "NVIDIA's data sheets.", rows.hardware()),
        Section("Tokens, steps, horizon", "Arithmetic; a public training log; nanochat's depth dial.", rows.horizons()),
        Section("Parameters", "The published weights; nanochat; 12 d² L of arXiv 2001.08361.", rows.parameters()),
        Section("FLOPs", "arXiv 2001.08361 (6 N D), arXiv 2204.02311 (PaLM's count), nanochat.", rows.flops()),
        Section(
            "Matrix products",
            "NVIDIA, Matrix Multiplication Background: intensities in fp16, tiles of 256 x 128; peaks over bandwidths.",
            matrix_products(),
        ),
        Section("Time and fleets", "FLOPs / (devices x dense peak x utilization).", fleets()),
        Section(
            "Steps that others measured",
            "IBM and PyTorch, Maximizing training throughput using PyTorch FSDP (2024); torchtitan, Llama 3 on H100 "
            "(December 2024). Ours are their FLOPs by PaLM's count over the dense peak, at the utilization they state.",
            published_runs(),
        ),
        Section("Memory", "Bytes a parameter before activations; activations come from the real graph.", rows.memory()),
        Section("Money", "Hours x devices x price.", rows.money()),
        Section("Schedules", "Linear warm-up with a cosine; trapezoid of arXiv 2405.18392.", rows.schedules()),
        Section("Evaluation and inference", "Definitions.", rows.evaluation()),
    ]


def answer(command: str) -> str:
    """Return a calculation's command and its page, where nothing was measured."""
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as elsewhere, chdir(elsewhere), redirect_stdout(printed):
        calc(command.split()[2:])
    return f"```\n$ {command}\n{printed.getvalue()}```\n"


def page(content: list[Section]) -> str:
    """Lay the sections out as Markdown."""
    answers = "\n".join(map(answer, ANSWERS))
    parts = [HEADER, CALCULATORS.format(answers=answers, commands="\n".join(COMMANDS))]
    for section in content:
        parts.append(f"\n## {section.title}\n\n{section.source}\n")
        parts.append("\n| quantity | lmtrain | reference | difference | |\n|---|---|---|---|---|\n")
        parts += [f"{row.line()}\n" for row in section.rows]
    return "".join(parts)


def main() -> int:
    """Write the page and say how many figures agree."""
    content = sections()
    PAGE.write_text(page(content))
    wrong = [row.what for section in content for row in section.rows if not row.agrees]
    total = sum(len(section.rows) for section in content)
    print(f"{PAGE.name}: {total - len(wrong)} of {total} figures agree with their references")
    for what in wrong:
        print(f"  differs: {what}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
