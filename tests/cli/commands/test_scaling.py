import json
from pathlib import Path

import pytest

from lmtrain.accounting.scaling_laws.compute_optimal import REPLICATION
from lmtrain.cli.commands.scaling import scaling
from lmtrain.report import scaling_study
from lmtrain.report.scaling_law import fit_law, optimum


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling_study, "fit_law", lambda points: fit_law(points, num_draws=8))


def sweep_of(root: Path, flops: list[float], factors: list[float]) -> Path:
    """Write finished runs of the published law."""
    for budget in flops:
        for factor in factors:
            size = factor * optimum(REPLICATION, budget)[0]
            run_of(root / f"run-{budget:.0e}-{factor}", size, budget / (6 * size))
    return root


def run_of(folder: Path, size: float, tokens: float) -> Path:
    folder.mkdir(parents=True)
    loss = REPLICATION.loss(size, tokens)
    lines = [(0, 0, 11.0), (10, int(tokens), loss)]
    points = [{"time": 0, "step": s, "tokens": t, "metrics": {"validation/loss": v}} for s, t, v in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    (folder / "plan.json").write_text(json.dumps({"parameters": {"matmul": size, "active": 2 * size}}))
    (folder / "status.json").write_text(json.dumps({"status": "FINISHED", "exit_code": 0}))
    return folder


def test_a_sweep_gives_its_law_and_a_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = sweep_of(tmp_path / "sweep", [1e18, 1e19, 1e20], [0.3, 0.6, 1.1, 2.0, 4.0])
    assert scaling([str(sweep), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fit"]["parameters_exponent"] == pytest.approx(REPLICATION.parameters_exponent, rel=1e-2)
    assert len(found["fit"]["isoflop"]["minima"]) == 3
    predicted = found["predicted"]
    assert predicted["flops"] == pytest.approx(1e21, rel=1e-3)
    assert predicted["num_parameters"] == pytest.approx(optimum(REPLICATION, predicted["flops"])[0], rel=0.02)
    assert predicted["warning"] is None
    assert scaling([str(sweep), "--flops", "1e22"]) == 0
    assert "too far beyond it for the band" in capsys.readouterr().out
    small = sweep_of(tmp_path / "small", [1e18, 1e19, 1e20], [0.001, 0.002, 0.003, 0.004])
    assert scaling([str(small)]) == 0
    assert "The law's best size is far from all models of the sweep" in capsys.readouterr().out


def test_runs_of_one_name_in_two_sweeps_all_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for budget in (1e18, 1e19, 1e20):
        sweep = sweep_of(tmp_path / f"both/{budget:.0e}", [budget], [0.3, 0.6, 1.1, 2.0, 4.0])
        for place, folder in enumerate(sorted(sweep.iterdir())):
            folder.rename(sweep / f"run-{place}")
        going = run_of(sweep / "going", 1e6, 1e8)
        (going / "status.json").write_text(json.dumps({"status": "RUNNING"}))
    assert scaling([str(tmp_path / "both"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_runs"] == 15
    assert found["left_out"].keys() == {"1e+18/going", "1e+19/going", "1e+20/going"}
