"""Draw the state of a run at a moment: as one plain line, or as a panel as wide as its terminal allows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lmtrain.accounting.observed.metric_names import speed_name
from lmtrain.accounting.observed.time_accounts import kind_words
from lmtrain.accounting.quantities import format_quantity

PANEL_COLUMNS: Final = 92
BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of a run at a moment, None for not yet known; `validation` is bits per byte, oldest first.

    `tokens_per_second` and MFU are of tokens with loss, a `loss_share` of all; `seconds_left` are with pauses.
    `reward` and `equal_groups` are those of task=grpo, `preferred` and `margin` those of task=dpo.
    `time_shares` say where this attempt's time went, by kind. Projections are of the whole run.
    """

    name: str
    activity: str
    step: int
    num_steps: int | None
    tokens_per_step: int
    loss: float | None = None
    reward: float | None = None
    equal_groups: float | None = None
    preferred: float | None = None
    margin: float | None = None
    lr: float | None = None
    tokens_per_second: float | None = None
    loss_share: float = 1.0
    mfu: float | None = None
    seconds_left: float | None = None
    peak_is_known: bool = True
    usd: float | None = None
    projected_usd: float | None = None
    kwh: float | None = None
    projected_kwh: float | None = None
    validation: tuple[float, ...] = ()
    checkpoint_step: int | None = None
    time_shares: Mapping[str, float] = field(default_factory=dict[str, float])


def line(now: Snapshot) -> str:
    """Write a snapshot as one plain line."""
    parts = [f"step {now.step}", f"{_tokens(now)} tokens"]
    if now.num_steps is not None:
        parts = [f"step {now.step}/{now.num_steps}", f"{_tokens(now)} tokens ({_share(now):.0%})"]
    if now.loss is not None:
        parts.append(f"loss {now.loss:.3f}")
    if now.reward is not None:
        parts.append(f"reward {_reward(now, now.reward)}")
    if now.preferred is not None:
        parts.append(f"preferred {_preferred(now, now.preferred)}")
    if now.lr is not None:
        parts.append(f"lr {now.lr:.2e}")
    if now.tokens_per_second is not None:
        parts += [_speed(now, now.tokens_per_second), f"MFU {_mfu(now)}"]
    if now.validation:
        parts.append(f"validation {_validation(now)} bits/byte")
    if now.seconds_left is not None:
        parts.append(f"{format_quantity(now.seconds_left, 'seconds')} left")
    parts += [spent for _, spent in _spent(now)]
    return " | ".join(parts)


def _reward(now: Snapshot, reward: float) -> str:
    """Write a mean reward, and that a step of groups with one reward each teaches nothing."""
    return f"{reward:.4g}" + (" (all groups equal: nothing to learn from)" if now.equal_groups == 1 else "")


def _preferred(now: Snapshot, preferred: float) -> str:
    """Write the share of pairs whose chosen answer is the likelier one, and its margin."""
    return f"{preferred:.0%} of pairs" + ("" if now.margin is None else f" by {now.margin:.3g}")


def panel(now: Snapshot) -> RenderableType:
    """Draw a snapshot as a panel of about ten rows, or of twenty on a narrow terminal."""
    share = _share(now)
    bar = Table.grid(expand=True, padding=(0, 1))
    bar.add_column(ratio=1)
    bar.add_column(justify="right", width=6)
    bar.add_row(
        ProgressBar(total=1.0, completed=share, complete_style="cyan", finished_style="green"),
        Text(f"{share:.1%}", style="bold"),
    )
    left = "" if now.seconds_left is None else f"{format_quantity(now.seconds_left, 'seconds')} left"
    steps = f"step {now.step:,}" if now.num_steps is None else f"step {now.step:,} of {now.num_steps:,}"
    done = Table.grid(expand=True, padding=(0, 1))
    done.add_column(ratio=1)
    done.add_column(justify="right")
    done.add_row(Text(f"{_tokens(now)} tokens   {steps}", style="dim"), Text(left, style="bold"))
    return Panel(
        Group(bar, done, Text(""), _numbers(now)),
        title=Text(now.name, style="bold"),
        title_align="left",
        subtitle=Text(now.activity, style="dim"),
        subtitle_align="right",
        border_style="dim cyan",
        padding=(1, 1),
        width=PANEL_COLUMNS,
    )


def _numbers(now: Snapshot) -> Table:
    speed = None if now.tokens_per_second is None else _speed(now, now.tokens_per_second)
    trend = f"{_validation(now)} bits/byte {sparkline(now.validation)}" if now.validation else None
    saved = None if now.checkpoint_step is None else f"step {now.checkpoint_step:,}"
    pairs = [
        ("loss", _or_dash(now.loss, "{:.3f} nats" if now.reward is None and now.preferred is None else "{:.3f}")),
        *([] if now.reward is None else [("reward", _reward(now, now.reward))]),
        *([] if now.preferred is None else [("preferred", _preferred(now, now.preferred))]),
        ("validation", trend or "-"),
        ("learning rate", _or_dash(now.lr, "{:.2e}")),
        ("speed", speed or "-"),
        ("checkpoint", saved or "-"),
        ("MFU", _mfu(now)),
    ]
    if now.time_shares:
        pairs.append(("goodput", f"{now.time_shares.get('compute', 0.0):.1%}"))
        pairs.append(("other time", _other_time(now)))
    pairs += _spent(now)
    table = Table.grid(expand=True, padding=(0, 2, 0, 0))
    for left_over in range(2):  # two pairs of name and value a row
        table.add_column(style="dim", no_wrap=True)
        table.add_column(style="bold", ratio=left_over or None, overflow="fold")
    for first in range(0, len(pairs), 2):
        table.add_row(*(Text(word) for pair in pairs[first : first + 2] for word in pair))
    return table


def _speed(now: Snapshot, tokens_per_second: float) -> str:
    return f"{format_quantity(round(tokens_per_second))} {speed_name(now.loss_share)}"


def _spent(now: Snapshot) -> list[tuple[str, str]]:
    """Name the known dollars and energy so far and of the whole run."""
    amounts = (
        ("cost", _dollars, now.usd, now.projected_usd),
        ("energy", "{:,.3g} kWh".format, now.kwh, now.projected_kwh),
    )
    return [
        (name, shown(so_far) + ("" if whole is None else f" of about {shown(whole)}"))
        for name, shown, so_far, whole in amounts
        if so_far is not None
    ]


def _dollars(amount: float) -> str:
    return format_quantity(amount, "usd")


def _other_time(now: Snapshot) -> str:
    """Name the two largest kinds of time besides computing."""
    others = sorted((share, kind) for kind, share in now.time_shares.items() if kind != "compute" and share > 0)
    return ", ".join(f"{kind_words(kind)} {share:.0%}" for share, kind in others[:-3:-1]) or "-"


def sparkline(values: tuple[float, ...]) -> str:
    """Draw values as bars between their smallest and largest; empty for fewer than two."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values[-16:])


def _tokens(now: Snapshot) -> str:
    done = format_quantity(now.step * now.tokens_per_step)
    return done if now.num_steps is None else f"{done} of {format_quantity(now.num_steps * now.tokens_per_step)}"


def _share(now: Snapshot) -> float:
    return min(1.0, now.step / now.num_steps) if now.num_steps else 0.0


def _mfu(now: Snapshot) -> str:
    if not now.peak_is_known:
        return "peak unknown"
    return "-" if now.mfu is None else f"{now.mfu:.1%}"


def _validation(now: Snapshot) -> str:
    first, last = now.validation[0], now.validation[-1]
    return f"{last:.3f}" if len(now.validation) == 1 else f"{first:.3f} → {last:.3f}"


def _or_dash(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)
