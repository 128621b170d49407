"""CI's decision on the audit of the lock, with a stand-in for pip-audit: a program that answers as it does."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CLEAN: dict[str, Any] = {"name": "torch", "version": "2.13.0", "vulns": []}
BAD: dict[str, Any] = {
    "name": "urllib3",
    "version": "2.4.0",
    "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-2025-50181"], "fix_versions": ["2.5.0"], "description": "x"}],
}
NO_ROUTE = "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='x'): Max retries exceeded with url: /"
WRONG = "ERROR:pip_audit._cli:package is not pinned with =="


def audited(listed: str, packages: list[dict[str, Any]] | None, said: str = "", code: int = 0) -> int:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    audit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(audit)
    answer = "" if packages is None else json.dumps({"dependencies": packages, "fixes": []})
    stand_in = f"import sys; sys.stdout.write({answer!r}); sys.stderr.write({said!r}); sys.exit({code})"
    return audit.main([sys.executable, "-c", stand_in], listed)


@pytest.mark.parametrize(
    ("listed", "packages", "said", "code", "decision", "told"),
    [
        ("", [CLEAN], "", 0, 0, "1 packages, 0 known vulnerabilities"),
        ("", [CLEAN, BAD], "", 1, 1, "urllib3 2.4.0: PYSEC-1, mended in 2.5.0"),
        (
            "CVE-2025-50181 no redirect is followed here",
            [CLEAN, BAD],
            "",
            1,
            0,
            "PYSEC-1, no redirect is followed here",
        ),
        ("", None, NO_ROUTE, 1, 3, "NOT AUDITED: no database was reached"),
        ("", None, WRONG, 1, 1, "The audit failed (exit 1)"),
        ("", [CLEAN, CLEAN | {"skip_reason": "not on PyPI"}], "", 0, 1, "torch was not audited: not on PyPI"),
    ],
)
def test_a_known_vulnerability_fails_unless_listed_and_a_database_out_of_reach_does_not_count_as_one(
    listed: str, packages: Any, said: str, code: int, decision: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audited(listed, packages, said, code) == decision
    printed = capsys.readouterr()
    assert told in printed.out + printed.err
