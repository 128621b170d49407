"""Folders of runs to compare: settings, a curve, what it was measured on, how the run ended."""

import json

HELD_OUT = {"source": "a book", "split_bytes": 1000, "num_bytes": 900, "tokenizer": "t1"}
STEP_TOKENS = 100


def write(
    folder,
    *,
    lr=0.1,
    seed=1,
    values=(8.0, 4.0, 2.0),
    status="FINISHED",
    words=None,
    held_out=None,
    sweep=None,
    read=None,
    masked=False,
    **more,
):
    """Write a run measured after 0, 100, 200, ... tokens; `more` are settings besides optimizer.lr."""
    text = HELD_OUT | (held_out or {})
    attempt = folder / "attempts/1"
    attempt.mkdir(parents=True)
    config = {"seed": seed, "optimizer": {"lr": lr}, "run": {"name": folder.name}, **more}
    typed = [f"optimizer.lr={lr}", "data=x", f"seed={seed}", f"run.name={folder.name}"] if words is None else words
    (attempt / "job.json").write_text(json.dumps({"config": config, "overrides": typed}))
    identity = {"name": folder.name} | ({"sweep": sweep} if sweep else {})
    (folder / "run.json").write_text(json.dumps(identity))
    (folder / "status.json").write_text(json.dumps({"status": status, "exit_code": 0 if status == "FINISHED" else 3}))
    steps = len(values) - 1
    plan = {"batch": {"tokens_per_step": STEP_TOKENS}, "horizon": {"steps": 2}, "flops_per_token": {"palm": 10.0}}
    (folder / "plan.json").write_text(json.dumps(plan))
    splits = {"validation": {"text_bytes": text["split_bytes"], "shards": [{"mask_sha256": "0"}] if masked else []}}
    dataset = {"name": text["source"], "tokenizer_fingerprint": text["tokenizer"], "splits": splits}
    (folder / "dataset.json").write_text(json.dumps(dataset))
    points = [
        {
            "validation/bits_per_byte": value,
            "validation/loss": 3 * value,
            "validation/num_bytes": float(num_bytes),
        }
        for value, num_bytes in zip(values, read or [text["num_bytes"]] * len(values), strict=True)
    ]
    lines = [point(step, metrics) for step, metrics in enumerate(points)]
    if steps > 0:
        lines.append(point(steps, {"speed/tokens_per_second": 50.0, "speed/timed_seconds": 2.0}))
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def point(step, metrics):
    row = {"time": 1000.0 + step, "step": step, "tokens": step * STEP_TOKENS, "metrics": metrics}
    return json.dumps(row) + "\n"
