"""What `width_transfer` measured as a page: every loss, the coordinate check, and both in one plot."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

Rows = Sequence[dict[str, Any]]
SCALINGS: Final = ("none", "width_transfer")
DRAWN_STEP: Final = 3  # of the check


def losses_of(rows: Rows, scaling: str, width: int, *, seed: int) -> dict[float, float]:
    """Return the losses of one curve by rate; at the base width both rules are the same training."""
    mine = [row for row in trials(rows) if (row["seed"], row["width"]) == (seed, width)]
    return {row["lr"]: row["loss"] for row in mine if width == widths(rows)[0] or row["scaling"] == scaling}


def trials(rows: Rows) -> Rows:
    """Return the trainings, without the checks."""
    return sorted((row for row in rows if "loss" in row), key=lambda row: row["lr"])


def widths(rows: Rows) -> list[int]:
    """Return the widths that were trained."""
    return sorted({row["width"] for row in trials(rows)})


def best_of(losses: dict[float, float]) -> float:
    """Return the rate with the lowest loss."""
    return min(losses, key=lambda lr: losses[lr])


def check_of(rows: Rows, optimizer: str, scaling: str) -> dict[int, dict[str, list[float]]]:
    """Return what the coordinate check found, by width."""
    mine = [row for row in rows if row.get("optimizer") == optimizer and row["scaling"] == scaling]
    return {row["width"]: row["moved"] for row in sorted(mine, key=lambda row: row["width"])}


def optimizers(rows: Rows) -> list[str]:
    """Return what was checked."""
    return sorted({row["optimizer"] for row in rows if "optimizer" in row})


def loss_table(rows: Rows) -> Iterator[str]:
    """Say every loss, the best rate of each curve, and what the base's best rate loses against it."""
    rates = sorted({row["lr"] for row in trials(rows)})
    yield f"| scaling | width | seed | {' | '.join(map(str, rates))} | best lr | lost at the base's best lr |"
    yield "|---|---|---|" + "---|" * (len(rates) + 2)
    for seed in sorted({row["seed"] for row in trials(rows)}):
        carried = best_of(losses_of(rows, "none", widths(rows)[0], seed=seed))
        for scaling in SCALINGS:
            for width in widths(rows)[scaling != "none" :]:
                losses = losses_of(rows, scaling, width, seed=seed)
                best = best_of(losses)
                shown = " | ".join(_cell(losses.get(lr), is_best=lr == best) for lr in rates)
                lost = f"{losses[carried] - losses[best]:.3f}" if carried in losses else ""
                word = "(base)" if width == widths(rows)[0] else scaling
                yield f"| {word} | {width} | {seed} | {shown} | {best:g} | {lost} |"


def _cell(loss: float | None, *, is_best: bool) -> str:
    shown = "" if loss is None else f"{loss:.3f}"
    return f"**{shown}**" if is_best else shown


def check_table(rows: Rows) -> Iterator[str]:
    """Say how far activations have moved after the first, a middle and the last step, at every width."""
    checked = [*check_of(rows, optimizers(rows)[0], SCALINGS[0])]
    yield f"| optimizer | scaling | what | step | {' | '.join(map(str, checked))} | grows as width to the |"
    yield "|---|---|---|---|" + "---|" * (len(checked) + 1)
    for optimizer in optimizers(rows):
        for scaling in SCALINGS:
            found = check_of(rows, optimizer, scaling)
            for what in ("stream", "logits"):
                for step in (1, DRAWN_STEP, 10):
                    moved = [found[width][what][step - 1] for width in checked]
                    power = math.log(moved[-1] / moved[0]) / math.log(checked[-1] / checked[0])
                    shown = " | ".join(f"{size:.3f}" for size in moved)
                    yield f"| {optimizer} | {scaling} | {what} | {step} | {shown} | {power:+.2f} |"


def plot(rows: Rows, path: Path) -> None:
    """Draw how far logits move against width, and losses against learning rates, without and with the rule."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (check, *curves) = pyplot.subplots(1, 3, figsize=(12, 3.8), layout="tight")
    _draw_check(check, rows)
    rates = sorted({row["lr"] for row in trials(rows)})
    for axis, scaling in zip(curves, SCALINGS, strict=True):
        for width, colour in zip(widths(rows), ("tab:blue", "tab:orange", "tab:green"), strict=True):
            losses = losses_of(rows, scaling, width, seed=1)
            axis.semilogx([*losses], [*losses.values()], "o-", color=colour, label=f"width {width}", base=2)
            axis.plot(best_of(losses), min(losses.values()), "*", color=colour, markersize=15)
        axis.set(title=f"scaling={scaling}", xlabel="optimizer.lr (AdamW)", ylabel="held-out nats per byte")
        axis.set_xticks(rates, [f"{lr:g}" for lr in rates])
    limits = [limit for axis in curves for limit in axis.get_ylim()]
    for axis in curves:
        axis.set_ylim(min(limits), max(limits))
    for axis in (check, *curves):
        axis.grid(visible=True, alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _draw_check(axis: Any, rows: Rows) -> None:
    for optimizer, colour in zip(optimizers(rows), ("tab:red", "tab:purple"), strict=True):
        for scaling, style in zip(SCALINGS, ("o--", "o-"), strict=True):
            found = check_of(rows, optimizer, scaling)
            sizes = [moved["logits"][DRAWN_STEP - 1] for moved in found.values()]
            axis.loglog([*found], sizes, style, color=colour, label=f"{optimizer}, {scaling}")
            axis.set_xticks([*found], [str(width) for width in found])
    axis.set_xticks([], minor=True)
    axis.set(title=f"how far {DRAWN_STEP} steps move logits", xlabel="width", ylabel="root mean square")
