import json

import pytest

from lmtrain.report.run_page.curves import curve_sections
from lmtrain.tracking.run_log import Point
from tests.report.compared_folder import write_readings
from tests.report.test_markup import Reader


def point(step, **metrics):
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return Point(1000.0 + 60 * step, step, 100 * step, named)


@pytest.fixture
def points():
    return [
        point(
            step,
            train__loss=5.0 - step,
            train__lr=0.1,
            train__gradient_norm=1.0,
            speed__mfu_palm=0.4,
            speed__goodput=0.9,
            memory__peak_bytes=2**30 * (3 - step % 3),
            cost__usd=0.5 * step,
            evaluation__validation__bits_per_byte=1.0,
            validation__num_bytes=7,
        )
        for step in range(1, 5)
    ]


def test_every_curve_is_there_with_its_unit(points, tmp_path):
    plan = {"flops_per_token": {"palm": 6e9}, "batch": {"tokens_per_step": 100}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    write_readings(tmp_path, [60.0 * step for step in range(5)], evaluation=20.0)
    page = Reader("".join(curve_sections(tmp_path, points)))
    labels = [attributes["aria-label"] for _, attributes in page.tags if "aria-label" in attributes]
    for axis in ("tokens", "minutes of the clock", "FLOPs (PaLM)", "dollars"):
        assert any(label.startswith(f"Training loss, nats per token, over {axis}: from 4 to 1 at") for label in labels)
    ends = {label.rpartition(" at ")[2] for label in labels if label.startswith("Training loss")}
    assert ends == {"400", "4", "2.4e12", "$2"}
    assert "of the tokens" not in page.text
    (tmp_path / "plan.json").write_text(json.dumps({"batch": {"tokens_per_step": 100}}))
    (tmp_path / "fork.json").write_text(json.dumps({"checkpoint": "runs/dog/checkpoints/step_1", "step": 1}))
    told = "".join(curve_sections(tmp_path, points))
    assert "100 of the tokens, with their FLOPs, are of runs/dog, no longer there; time and dollars are this" in told
    for name in (
        "Learning rate",
        "Gradient norm",
        "MFU",
        "Goodput so far, computing of the clock: from 0.0% to 92.3% at 400",
        "Most memory so far, bytes: from 2.1GB to 3.2GB",
        "Evaluation, validation, bits per byte",
    ):
        assert sum(label.startswith(name) for label in labels) == 1, name
    assert len(labels) == 10


def test_a_task_with_a_loss_of_its_own_has_its_rewards_drawn_and_no_nats_per_token(tmp_path):
    steps = [Point(float(step), step, 100 * step, {"train/loss": 0.1, "reward/mean": 0.2 * step}) for step in (1, 2)]
    page = Reader("".join(curve_sections(tmp_path, steps)))
    labels = [attributes["aria-label"] for _, attributes in page.tags if "aria-label" in attributes]
    assert sum(label.startswith("Training loss, of the task, over tokens") for label in labels) == 1
    assert sum(label.startswith("Reward, mean: from 0.2 to 0.4") for label in labels) == 1


def test_a_loss_costs_the_set_up_before_it(tmp_path):
    write_readings(tmp_path, [60.0 * step for step in range(4)])
    points = [point(1, train__loss=5.0), point(2, train__loss=4.0), point(3, train__loss=3.0, cost__usd=1.0)]
    points = [Point(each.time + 600, each.step, each.tokens, each.metrics) for each in points]
    page = "".join(curve_sections(tmp_path, points))
    assert "$0.9" in page, "600 of 780 s are before the first step"
    assert "$0.5" not in page


def test_labels_of_an_axis_are_told_apart(tmp_path):
    points = [point(step, memory__peak_bytes=1.41e9 + 5e6 * step, speed__mfu_palm=0.02) for step in (1, 2, 3)]
    page = Reader("".join(curve_sections(tmp_path, points))).text
    assert "1.415GB1.417GB1.420GB1.423GB1.425GB" in page, "1.4GB each"


def test_scores_of_other_bytes_are_on_no_line_and_are_told(tmp_path):
    scores = [(9.0, 10), (8.5, 10), (6.0, 20), (5.0, 20)]
    points = [
        point(step, validation__bits_per_byte=score, validation__num_bytes=read)
        for step, (score, read) in enumerate(scores)
    ]
    text = "".join(curve_sections(tmp_path, points))
    assert "from 6 to 5 at" in text
    assert "Left out, as they do not compare: scores of other held-out text, 2 of 10 bytes." in text


def test_without_price_plan_and_points_nothing_is_made_up(tmp_path):
    assert "".join(curve_sections(tmp_path, [])) == ""
    page = Reader("".join(curve_sections(tmp_path, [point(step, train__loss=1.0) for step in (1, 2)])))
    labels = [attributes["aria-label"] for _, attributes in page.tags if "aria-label" in attributes]
    assert len(labels) == 2, "over tokens and over the clock"
