"""How near each part of a step comes to its measured ceiling: the time at the ceiling over the time in the profile.

Products at the rates of `products`, attention by the fastest kernel of `attention`, the optimizer's step as measured
alone. What is elementwise has the copy's bandwidth as its ceiling, and no count of its bytes: it has no share here.
"""

from typing import Any

from benchmarks.harness.hopper.rows import Row

BAR_WIDTH, BAR_HEIGHT, LEFT = 400, 22, 220


def shares(ceilings: dict[str, list[Row]], profile: list[Row], *, num_tokens: dict[str, int]) -> dict[str, float]:
    """Return the share of the ceiling by "model: part", of all models that were profiled and have ceilings.

    `num_tokens` is of a micro-batch by model, which tells how many chunks the head's products take.
    """
    found: dict[str, float] = {}
    for row in profile:
        if row.get("path") != "after" or "seconds_by_kind" not in row:
            continue
        model, spent = row["model"], row["seconds_by_kind"]
        best = {
            "products": _products(ceilings.get("products", []), model, num_tokens[model]),
            "attention": _attention(ceilings.get("attention", []), model),
            "optimizer": _optimizer(ceilings.get("optimizer", []), model),
        }
        found |= {
            f"{model}: {part}": seconds / spent[part] for part, seconds in best.items() if seconds and spent[part]
        }
    return found


def _measured(rows: list[Row], model: str, **wanted: str) -> list[Row]:
    rows = [row for row in rows if row["model"] == model and "not_measured" not in row]
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def _products(rows: list[Row], model: str, num_tokens: int) -> float:
    return sum(
        row["seconds"] * row["count"] * num_tokens / row["num_rows"] for row in _measured(rows, model, dtype="bf16")
    )


def _attention(rows: list[Row], model: str) -> float:
    best: dict[Any, float] = {}
    for row in _measured(rows, model):
        seconds = row["count"] * (row["forward"]["seconds"] + row["backward"]["seconds"])
        best[row["window_tokens"]] = min(seconds, best.get(row["window_tokens"], seconds))
    return sum(best.values())


def _optimizer(rows: list[Row], model: str) -> float:
    return sum(row["seconds"] for row in _measured(rows, model, step="norm, fused with the factor inside"))


def plot(found: dict[str, float]) -> str:
    """Return the shares as bars, an SVG."""
    height = BAR_HEIGHT * len(found) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + BAR_WIDTH + 70}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<line x1="{LEFT + BAR_WIDTH}" y1="4" x2="{LEFT + BAR_WIDTH}" y2="{height - 22}" stroke="#999"/>',
        f'<text x="{LEFT + BAR_WIDTH}" y="{height - 6}" text-anchor="middle">measured ceiling</text>',
    ]
    for number, (name, share) in enumerate(found.items()):
        y, width = 4 + number * BAR_HEIGHT, BAR_WIDTH * min(share, 1.15)
        lines += [
            f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{name}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT - 6}" fill="#4878a8"/>',
            f'<text x="{LEFT + width + 6:.1f}" y="{y + 14}">{share:.0%}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"
