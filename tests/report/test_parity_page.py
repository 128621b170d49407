import io

from rich.console import Console

from lmtrain.accounting.observed.parity_checks import Parity, RankDifference
from lmtrain.report.parity_page import page

SAME = [RankDifference(step=step, kind="gradient", name="head", largest=3e-7, scale=1.0) for step in (1, 2)]


def text(*differences: RankDifference) -> str:
    found = Parity(
        strategy="fsdp", num_ranks=2, num_steps=2, tolerance=1e-4, differences=differences, changed=("precision=fp32",)
    )
    console = Console(file=io.StringIO(), width=200)
    console.print(page(found))
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_the_first_difference_is_told_with_step_tensor_size_and_ranks() -> None:
    wrong = RankDifference(step=2, kind="gradient", name="blocks.0.up", largest=0.5, scale=2.0, ranks=(1, 3))
    assert "First difference: step 2, gradient of blocks.0.up, by 0.5 (0.25 relative), on ranks 1, 3." in text(wrong)
