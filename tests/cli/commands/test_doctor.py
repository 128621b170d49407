import json
from pathlib import Path

import pytest

from lmtrain.cli.commands import doctor as module
from lmtrain.cli.commands.doctor import doctor, verdict
from lmtrain.cli.commands.plan import plan
from lmtrain.doctor.checks import Finding
from lmtrain.training import peak
from tests import tiny

SMALL = [*tiny.MODEL, *tiny.DATA, *tiny.BATCH, "compile=none", "precision=fp32", "logger=none"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(peak, "SIDE", 256)
    monkeypatch.setattr(peak, "MEASURED_SECONDS", 0.05)


def test_every_check_has_a_line_and_what_was_measured_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor([*SMALL, "--json"])
    said = json.loads(capsys.readouterr().out)
    names = {check["name"] for check in said["checks"]}
    assert {"devices", "precision", "C++ compiler", "shared memory", "open files", "disk room", "disk speed"} <= names
    assert all(check["fix"] for check in said["checks"] if check["state"] != "ok")
    assert code == (0 if said["ok"] else 1)
    kept = json.loads(Path(".cache/doctor.json").read_text())["devices"][0]
    assert kept["matmul_flops"] == said["measured"]["matmul_flops"]
    plan([*SMALL, "--json", "trainer.accelerator=cpu", f"trainer.cpu_threads={kept['threads'] or 1}"])
    planned = json.loads(capsys.readouterr().out)
    if kept["kind"] == "cpu":
        assert planned["peak"]["flops"] == kept["matmul_flops"]["fp32"]
        assert planned["peak"]["source"].startswith("measured by lmtrain doctor")


def test_something_bad_exits_one_with_its_fix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Finding(name="disk room", state="bad", found="1 B free", fix="free some space")
    monkeypatch.setattr(module, "examine", lambda config: [bad])
    assert doctor(SMALL) == 1
    said = capsys.readouterr().out
    assert "-> free some space" in said
    assert "not ready: 1 problem" in said
    assert verdict([]) == "ready"
