"""The harness of one GPU: marks that nobody measured say so, and every figure comes out of its row."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.harness.hopper import parts, speeds, user_runs
from benchmarks.harness.hopper.cases import CASES, composed, last_of_each
from benchmarks.harness.hopper.ceiling_shares import plot, shares
from benchmarks.harness.hopper.loops import run_words
from benchmarks.harness.hopper.marks_page import MARKS, page
from benchmarks.harness.hopper.peers import against_fastest
from benchmarks.harness.hopper.report_file import keep_row, merged
from benchmarks.harness.hopper.rows import Bench
from benchmarks.peers.hopper import full_trainer
from benchmarks.peers.hopper.profiles import is_counted, kind_of
from benchmarks.questions import hopper
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.run_config import read_config
from lmtrain.run.validators.float8_head import require_float8_head

RESULTS = Path(hopper.__file__).parents[1] / "results"
H200 = {"device": "NVIDIA H200", "is_toy": False, "torch": "2.13", "command": "c"}


CPU = Bench(torch.device("cpu"), is_toy=True, known=None)


def speed(model, variant, tokens, peak=None):
    return {"model": model, "variant": variant, "tokens_per_second": tokens, "peak_bytes": peak}


MEASURED = {
    "speed": [
        speed("llama_3_2_1b", "bf16", 60000.0, 74 * 2**30),
        speed("llama_3_2_1b", "whole_step", 61000.0, 75 * 2**30),
        speed("llama_3_2_1b", "fp8", 75000.0),
        {"model": "gpt2_124m", "variant": "whole_step", "not_measured": "no room"},
    ],
    "overhead": [
        {"model": "llama_3_2_1b", "loop": "bare", "step_seconds": [1.0, 2.0, 1.0]},
        {"model": "llama_3_2_1b", "loop": "full_trainer", "step_seconds": [1.0005, 2.001, 1.1]},
    ],
    "memory": [{"model": "llama_3_2_1b", "variant": "whole_step", "planned_bytes": 72 * 2**30}],
    "data": [{"model": "llama_3_2_1b", "data_wait_share": 1e-4}],
    "start": [{"start": "cold", "first_step_seconds": 18.0}],
    "checkpoint": [{"stall_seconds": 0.0123}],
    "curve": [{"path": "fast bf16", "largest_difference": 0.001}],
}


def shown(text):
    """Return the figures of the marks by what they are of."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[2] for row in rows if len(row) == 3}


def test_every_mark_of_a_report_without_parts_is_not_measured():
    figures = shown(page({"device": "", "is_toy": False, "parts": {}, "command": "c"}))
    assert all(figures[mark.what] == "not measured" for mark in MARKS)


def variant_named(name):
    return next(variant for variant in speeds.VARIANTS if variant.name == name)


def test_cuda_graphs_are_held_against_the_same_run_without():
    rows = [speed("gpt2_124m", "bf16", 4e5), speed("gpt2_124m", "cuda_graphs", 5e5)]
    what = "GPT-2 124M, CUDA graphs against our bf16"
    assert shown(page(H200 | {"parts": {"speed": rows}}))[what] == "1.250"
    assert shown(page(H200 | {"parts": {"speed": rows[:1]}}))[what] == "not measured"
    graphs = [*CASES[1].words, *variant_named("cuda_graphs").words]
    config = compose_config(last_of_each(graphs))
    assert config["compile"]["cuda_graphs"]
    assert config["recompute"]["_target_"].endswith(".none"), "nothing that a recorded step cannot do"


def test_a_head_in_fp8_is_measured_at_1b_and_is_a_run_that_can_be():
    rows = [speed("llama_3_2_1b", name, rate, 1) for name, rate in (("bf16", 6e4), ("fp8_head", 7.5e4))]
    what = "Llama-3.2-1B, fp8 with its head against our bf16"
    assert shown(page(H200 | {"parts": {"speed": rows}}))[what] == "1.250"
    config = compose_config(last_of_each([*CASES[0].words, *variant_named("fp8_head").words]))
    require_float8_head(read_config(config))
    assert config["precision"]["head"]


def test_a_toy_measures_no_format_of_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(speeds, "compare", lambda case, *_, **__: [{"model": case.name, "loop": "full_trainer"}])
    rows = list(speeds.rows(CPU, tmp_path))
    given_up = {"model": rows[0]["model"], "variant": rows[0]["variant"], "not_measured": "given up after 9 s"}
    held = [given_up]
    keep_row(held, rows[0])
    assert held == [rows[0]], "a measured row takes the place of one that was given up"
    said = {row["not_measured"] for row in rows if "not_measured" in row}
    assert said == {f"{variant.name} runs on a GPU" for variant in speeds.VARIANTS if not variant.on_cpu}
    assert sum("not_measured" not in row for row in rows) == len(CASES) * sum(one.on_cpu for one in speeds.VARIANTS)


def test_figures_come_out_of_their_rows():
    figures = shown(page(H200 | {"parts": MEASURED}))
    wanted = {
        "Llama-3.2-1B, context 4096, bf16, 524,288 tokens a step: tokens/s": "61,000",
        "Llama-3.2-1B, fp8 against our bf16": "1.250",
        "GPT-2 124M, context 1024, bf16, 524,288 tokens a step: tokens/s": "not measured",
        "full Trainer over bare loop, 1B": "+0.050 %",
        "data stall, 1B": "0.0100 %",
        "peak memory, 1B, 16 x 4096 tokens a micro-batch, 524,288 a step": "75.0 GiB",
        "`lmtrain plan` against it": "-4.0 %",
        "`lmtrain plan` against this one": "not measured",
        "checkpoint of the 1B run: training stands still": "12.3 ms",
        "first optimizer step, 1B, cold": "18.0 s",
        "first optimizer step, 1B, warm": "not measured",
        "loss, fast bf16 path off plain fp32": "0.100 %",
    }
    assert {what: figures[what] for what in wanted} == wanted


@pytest.mark.parametrize(
    "report", [{"device": "AMD EPYC", "is_toy": True}, H200 | {"is_toy": True}, {"device": "NVIDIA L4"}]
)
def test_figures_of_a_toy_or_of_another_device_are_not_the_marks(report):
    figures = shown(page({"is_toy": False, "command": "c"} | report | {"parts": MEASURED}))
    assert all(figures[mark.what] == "not measured" for mark in MARKS)


def test_the_committed_page_is_rendered_from_the_report_that_is_there():
    report = hopper.read(RESULTS / "hopper_h200.json")
    text = page(report | {"command": hopper.COMMAND})
    assert (RESULTS / "hopper_h200.md").read_text().startswith(text.rstrip()), (
        "run: python benchmarks/questions/hopper.py --page --hardware h200"
    )


def test_a_report_is_whole_after_every_row_and_keeps_the_parts_of_earlier_calls(tmp_path, monkeypatch):
    path = tmp_path / "hopper.json"
    path.write_text(json.dumps({"device": CPU.name, "is_toy": True, "parts": {"speed": [{"kept": 1}]}}))
    seen = []

    def part(bench, scratch):
        yield {"model": "one"}
        seen.append(json.loads(path.read_text())["parts"])
        yield {"model": "two"}
        yield {"model": "three", "not_measured": "given up after 1 s"}

    monkeypatch.setitem(hopper.PARTS, "data", part)
    given_up = hopper.measure(["data"], bench=CPU, scratch=tmp_path, path=path)
    report = json.loads(path.read_text())
    assert given_up == 1
    assert seen == [{"speed": [{"kept": 1}], "data": [{"model": "one"}]}]
    assert [row["model"] for row in report["parts"]["data"]] == ["one", "two", "three"]
    path.write_text(json.dumps(report | {"device": "another"}))
    with pytest.raises(ValueError, match="one page each"):
        hopper.measure(["data"], bench=CPU, scratch=tmp_path, path=path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("is_toy", [True, False])
def test_a_case_composes_to_one_micro_batch_a_step(case, is_toy, tmp_path):
    bench = Bench(torch.device("cpu"), is_toy=is_toy, known=None)
    words = run_words(case, composed(case, is_toy=is_toy), bench=bench, data=tmp_path, steps=100)
    assert len({word.partition("=")[0] for word in words}) == len(words)
    batch = composed(SimpleNamespace(overrides=lambda is_toy: words), is_toy=is_toy)["batch"]
    assert batch["tokens_per_step"] == batch["micro_batch_sequences"] * batch["context_tokens"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_headline_step_has_524288_tokens_and_a_bf16_residual(case, tmp_path):
    bench = Bench(torch.device("cuda"), is_toy=False, known=None)
    words = run_words(case, composed(case, is_toy=False), bench=bench, data=tmp_path, steps=9, is_whole_step=True)
    config = read_config(compose_config(words))
    assert config.batch.tokens_per_step == 524_288
    assert config.divided(config.batch).accumulation_micro_steps > 1
    assert config.precision.get("residual") == "bf16"
    if case.name != "nano_d24":  # its own batch follows its depth
        assert compose_config(list(case.words))["batch"]["tokens_per_step"] == 524_288, "the experiment itself"
    assert read_config(compose_config([case.words[0]])).precision.get("residual") == "bf16", "of the experiment itself"


def test_a_step_between_log_points_may_not_wait_for_the_device():
    assert [step for step in range(1, 32) if full_trainer.may_wait(step)] == [*range(1, 11), 20, 30]


def test_our_trainer_is_held_against_the_fastest_peer_of_a_model():
    def row(model, loop, ratio):
        return {"model": model, "loop": loop, "against_trainer": {"median": ratio} if ratio else None}

    rows = [row("m", "bare", 0.9), row("m", "litgpt", 1.5), row("m", "olmo_core", 1.2), row("n", "litgpt", 1.1)]
    assert against_fastest(rows, model="m") == 1.2
    assert against_fastest([row("m", "bare", 0.9), row("m", "litgpt", None)], model="m") is None


def test_without_checkouts_every_model_s_peers_are_not_measured():
    rows = list(parts.PARTS["peers"](CPU, Path()))
    assert [row["model"] for row in rows] == [case.name for case in CASES]
    assert {row["not_measured"] for row in rows} == {"no folder of checkouts: --peers FOLDER"}


def test_curves_are_compared_by_windows_of_steps():
    reference = dict.fromkeys(range(1, 41), 2.0)
    found = reference | {5: 2.2, 30: 1.9}
    assert parts.largest_difference(found, reference) == pytest.approx(0.2 / 40)


def test_kernels_are_sorted_by_what_they_work_on():
    names = {
        "nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_TNN": "products",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma": "attention",
        "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>": "optimizer",
        "Memcpy HtoD (Pinned -> Device)": "copies",
        "triton_poi_fused_mul_silu_0": "elementwise",
    }
    assert {name: kind_of(name) for name in names} == names


def test_shares_of_the_ceilings_add_up_layers_chunks_and_the_fastest_kernel():
    ceilings = {
        "products": [
            {"model": "m", "dtype": "bf16", "count": 2, "num_rows": 8, "seconds": 1.0},
            {"model": "m", "dtype": "bf16", "count": 1, "num_rows": 4, "seconds": 0.5},
            {"model": "m", "dtype": "fp8", "count": 1, "num_rows": 4, "seconds": 9.0},
        ],
        "attention": [
            {
                "model": "m",
                "count": 3,
                "window_tokens": None,
                "forward": {"seconds": 1.0},
                "backward": {"seconds": 2.0},
            },
            {
                "model": "m",
                "count": 3,
                "window_tokens": None,
                "forward": {"seconds": 0.5},
                "backward": {"seconds": 1.0},
            },
            {"model": "m", "count": 3, "window_tokens": None, "not_measured": "no such kernel"},
        ],
    }
    spent = {"products": 6.0, "attention": 9.0, "optimizer": 1.0, "elementwise": 5.0}
    profile = [
        {"model": "m", "path": "before", "seconds_by_kind": spent},
        {"model": "m", "path": "after", "seconds_by_kind": spent},
    ]
    found = shares(ceilings, profile, num_tokens={"m": 8})
    assert found == {"m: products": pytest.approx(0.5), "m: attention": pytest.approx(0.5)}
    assert plot(found).count("<rect") == 2


def test_a_run_s_folder_tells_stalls_waits_and_the_first_step(tmp_path):
    (tmp_path / "events").mkdir()
    lines = [{"name": "ledger", "step": step, "compute": 10.0 * step, "data_wait": 0.01 * step} for step in range(4)]
    lines += [
        {"name": "checkpoint", "step": step, "seconds": seconds} for step, seconds in ((2, 0.1), (4, 0.3), (6, 9.0))
    ]
    (tmp_path / "events/rank0.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    points = [
        {"time": 100.0 + step, "step": step, "tokens": step, "metrics": {"train/loss": 1.0 / step}} for step in (1, 2)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, points)) + "\n")
    assert user_runs.stall_seconds(tmp_path, last_step=6) == pytest.approx(0.2)
    assert user_runs.data_wait_share(tmp_path) == pytest.approx(0.01 / 10.01)
    assert user_runs.first_step_seconds(tmp_path, 91.0) == pytest.approx(10.0)
    assert user_runs.losses(tmp_path) == {1: 1.0, 2: 0.5}


def test_a_run_that_fails_says_its_last_line(tmp_path):
    with pytest.raises(RuntimeError, match=r"train.py ended with 2: lmtrain: .*modell"):
        user_runs.train(["modell=x"], root=tmp_path, name="broken", cache=tmp_path)


def test_a_measured_row_gives_way_to_a_measured_one_alone(tmp_path):
    rows = [{"model": "m", "variant": "fp8", "tokens_per_second": 1.0}]
    keep_row(rows, {"model": "m", "variant": "fp8", "not_measured": "no room"})
    keep_row(rows, {"model": "m", "variant": "bf16", "not_measured": "no room"})
    assert rows[0]["tokens_per_second"] == 1.0
    keep_row(rows, {"model": "m", "variant": "bf16", "tokens_per_second": 2.0})
    assert [row["tokens_per_second"] for row in rows] == [1.0, 2.0]
    one, two, other = (tmp_path / name for name in ("1.json", "2.json", "3.json"))
    report = {"device": "d", "is_toy": False}
    one.write_text(json.dumps(report | {"parts": {"speed": rows}}))
    two.write_text(json.dumps(report | {"parts": {"speed": [rows[1] | {"tokens_per_second": 3.0}], "data": [{}]}}))
    found = merged([one, two])["parts"]
    assert [row["tokens_per_second"] for row in found["speed"]] == [1.0, 3.0]
    assert found["data"] == [{}]
    other.write_text(json.dumps(report | {"device": "e", "parts": {}}))
    with pytest.raises(ValueError, match="one page each"):
        merged([one, other])


def test_an_annotation_is_no_kernel():
    kernel, annotation = (
        SimpleNamespace(key="k", device_type="DeviceType.CUDA", is_user_annotation=is_annotation)
        for is_annotation in (False, True)
    )
    assert is_counted(kernel, on_gpu=True)
    assert not is_counted(annotation, on_gpu=True)
