"""The results page: every mark with what was measured for it, or "not measured"; nothing is estimated."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.harness.hopper.peers import against_fastest
from benchmarks.harness.hopper.rows import Row
from lmtrain.accounting.machine.hardware import find_device

Parts = dict[str, list[Row]]
TOY: Final = "**A toy: narrow models, here only to show that every part runs. No figure of it says anything.**"
NOT_MEASURED: Final = "not measured"
HOPPER: Final = ("NVIDIA H100", "NVIDIA H200")


@dataclass(frozen=True)
class Mark:
    """One line of the page; `read` returns the figure of a report, or None where it has none."""

    what: str
    mark: str
    show: str
    read: Callable[[Parts], float | None]


def _row(parts: Parts, part: str, **wanted: str) -> Row | None:
    rows = [row for row in parts.get(part, []) if all(row.get(name) == value for name, value in wanted.items())]
    return next((row for row in rows if "not_measured" not in row), None)


def _value(part: str, name: str, **wanted: str) -> Callable[[Parts], float | None]:
    def read(parts: Parts) -> float | None:
        row = _row(parts, part, **wanted)
        return None if row is None else row.get(name)

    return read


def _speed_up(model: str, variant: str) -> Callable[[Parts], float | None]:
    """Read how often as fast as our bf16 another format, or way to launch, is; both with one micro-batch a step."""

    def read(parts: Parts) -> float | None:
        one, other = (_row(parts, "speed", model=model, variant=name) for name in (variant, "bf16"))
        return one["tokens_per_second"] / other["tokens_per_second"] if one and other else None

    return read


def _overhead(model: str) -> Callable[[Parts], float | None]:
    def read(parts: Parts) -> float | None:
        bare, full = (_row(parts, "overhead", model=model, loop=name) for name in ("bare", "full_trainer"))
        if not bare or not full:
            return None
        pairs: Sequence[tuple[float, float]] = list(zip(full["step_seconds"], bare["step_seconds"], strict=True))
        return 100 * (statistics.median(one / other for one, other in pairs) - 1)

    return read


def _against_peers(model: str) -> Callable[[Parts], float | None]:
    return lambda parts: against_fastest(parts.get("peers", []), model=model)


def _memory(variant: str) -> Callable[[Parts], float | None]:
    def read(parts: Parts) -> float | None:
        row = _row(parts, "speed", model="llama_3_2_1b", variant=variant)
        return row["peak_bytes"] / 2**30 if row and row.get("peak_bytes") else None

    return read


def _plan_off(variant: str) -> Callable[[Parts], float | None]:
    def read(parts: Parts) -> float | None:
        row, peak = _row(parts, "memory", model="llama_3_2_1b", variant=variant), _memory(variant)(parts)
        return 100 * (row["planned_bytes"] / 2**30 / peak - 1) if row and peak else None

    return read


def _scaled(read: Callable[[Parts], float | None], factor: float) -> Callable[[Parts], float | None]:
    return lambda parts: None if (value := read(parts)) is None else value * factor


MARKS: Final = (
    Mark("Llama-3.2-1B, context 4096, bf16, 524,288 tokens a step: tokens/s", "60,000; goal 66,000", "{:,.0f}",
         _value("speed", "tokens_per_second", model="llama_3_2_1b", variant="whole_step")),
    Mark("the same with one micro-batch of 65,536 tokens a step", "no mark", "{:,.0f}",
         _value("speed", "tokens_per_second", model="llama_3_2_1b", variant="bf16")),
    Mark("Llama-3.2-1B, fp8 against our bf16", "1.25 times", "{:.3f}", _speed_up("llama_3_2_1b", "fp8")),
    Mark("Llama-3.2-1B, fp8 with its head against our bf16", "above the row before", "{:.3f}",
         _speed_up("llama_3_2_1b", "fp8_head")),
    Mark("GPT-2 124M, context 1024, bf16, 524,288 tokens a step: tokens/s", "480,000; goal 540,000", "{:,.0f}",
         _value("speed", "tokens_per_second", model="gpt2_124m", variant="whole_step")),
    Mark("the same with one micro-batch a step", "no mark", "{:,.0f}",
         _value("speed", "tokens_per_second", model="gpt2_124m", variant="bf16")),
    Mark("nano d24, context 2048, bf16, 524,288 tokens a step: tokens/s", "above nanochat's own loop", "{:,.0f}",
         _value("speed", "tokens_per_second", model="nano_d24", variant="whole_step")),
    Mark("Llama-3.2-1B: step of the fastest peer in the same run over our Trainer's", "above 1", "{:.3f} times",
         _against_peers("llama_3_2_1b")),
    Mark("GPT-2 124M: step of the fastest peer in the same run over our Trainer's", "above 1", "{:.3f} times",
         _against_peers("gpt2_124m")),
    Mark("nano d24: step of nanochat's own loop over our Trainer's, at its least", "above 1", "{:.3f} times",
         _against_peers("nano_d24")),
    Mark("full Trainer over bare loop, 1B", "at most 0.1 %", "{:+.3f} %", _overhead("llama_3_2_1b")),
    Mark("full Trainer over bare loop, 124M", "at most 0.3 %", "{:+.3f} %", _overhead("gpt2_124m")),
    Mark("data stall, 1B", "at most 0.02 %", "{:.4f} %",
         _scaled(_value("data", "data_wait_share", model="llama_3_2_1b"), 100)),
    Mark("data stall, 124M", "at most 0.02 %", "{:.4f} %",
         _scaled(_value("data", "data_wait_share", model="gpt2_124m"), 100)),
    Mark("peak memory, 1B, 16 x 4096 tokens a micro-batch, 524,288 a step", "at most 76 GiB", "{:.1f} GiB",
         _memory("whole_step")),
    Mark("`lmtrain plan` against it", "within 5 %", "{:+.1f} %", _plan_off("whole_step")),
    Mark("peak memory, 1B, one micro-batch a step", "at most 76 GiB", "{:.1f} GiB", _memory("bf16")),
    Mark("`lmtrain plan` against this one", "within 5 %", "{:+.1f} %", _plan_off("bf16")),
    Mark("checkpoint of the 1B run: training stands still", "at most 30 ms", "{:.1f} ms",
         _scaled(_value("checkpoint", "stall_seconds"), 1e3)),
    Mark("first optimizer step, 1B, cold", "within 20 s", "{:.1f} s",
         _value("start", "first_step_seconds", start="cold")),
    Mark("first optimizer step, 1B, warm", "within 6 s", "{:.1f} s",
         _value("start", "first_step_seconds", start="warm")),
    Mark("loss, fast bf16 path off plain fp32", "within 0.5 %", "{:.3f} %",
         _scaled(_value("curve", "largest_difference", path="fast bf16"), 100)),
    Mark("loss, fp8 off plain fp32", "within 0.5 %", "{:.3f} %",
         _scaled(_value("curve", "largest_difference", path="fast fp8"), 100)),
)  # fmt: skip


def table(heads: list[str], lines: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *lines])


def is_hopper(report: dict[str, Any]) -> bool:
    """Tell whether the report's figures count: real shapes on an H100 or H200."""
    return not report["is_toy"] and str(report["device"]).startswith(HOPPER)


def page(report: dict[str, Any]) -> str:
    """Return the page of a report; on any other machine the marks say that they are not measured."""
    parts: Parts = report["parts"] if is_hopper(report) else {}
    versions = ", ".join(f"{name} {report[name]}" for name in ("torch", "cuda", "driver", "date") if report.get(name))
    measured_on = f"Measured on {report['device']} ({versions})." if parts else _why_not(report)
    known = find_device(str(report["device"])) if parts else None
    text = [
        "# One Hopper GPU against its marks",
        f"{measured_on} `{report['command']}` measures and renders this page; a figure that was not measured says so.",
        *([f"MFU divides by {known.half / 1e12:,.1f} TFLOP/s, the data sheet's dense bf16 peak."] if known else []),
        marks(report),
        *([TOY] if report["is_toy"] and report["parts"] else []),
        *(_details(report["parts"]) if report["parts"] else []),
    ]
    return "\n\n".join(text) + "\n"


def marks(report: dict[str, Any]) -> str:
    """Return the table of the marks."""
    parts: Parts = report["parts"] if is_hopper(report) else {}
    return table(["what", "mark", "measured"], [[mark.what, mark.mark, _shown(mark, parts)] for mark in MARKS])


def _shown(mark: Mark, parts: Parts) -> str:
    value = mark.read(parts)
    return NOT_MEASURED if value is None else mark.show.format(value)


def _why_not(report: dict[str, Any]) -> str:
    device = report["device"]
    return (
        f"No H100 or H200 was at hand (this page was made on: {device})." if device else "No H100 or H200 was at hand."
    )


def _details(parts: Parts) -> list[str]:
    """Return a table of every part's rows, without what is too long for one."""
    found: list[str] = []
    for name, rows in parts.items():
        heads = list(dict.fromkeys(key for row in rows for key in row if _is_short(row[key])))
        lines = [[_cell(row.get(head)) for head in heads] for row in rows]
        words = sorted({" ".join(row["words"]) for row in rows if "words" in row})
        flags = "\n\nOverrides:\n\n" + "\n".join(f"- `{line}`" for line in words) if words else ""
        found.append(f"## {name.capitalize().replace('_', ' ')}\n\n{table(heads, lines)}{flags}")
    return found


def _is_short(value: Any) -> bool:
    return not isinstance(value, (dict, list))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return "" if value is None or not _is_short(value) else str(value).replace("|", "/")
