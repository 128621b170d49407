"""Write docs/reliability.md: run the test of each promise, and put its result and those of the campaigns into a table.

    python benchmarks/questions/reliability_page.py --run        # the tests of all rows, then the page
    python benchmarks/questions/reliability_page.py              # the page from the results kept before

Results are kept in benchmarks/results/reliability_HARDWARE_MONTH.json: of tests by name, of campaigns as they print
them (`crash_states`, `kills`, `mutations`, `preempted_day`), given by `--campaign NAME=FILE.json`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.harness.reliability.page import page  # noqa: E402
from benchmarks.harness.reliability.rows import ROWS  # noqa: E402

KEPT: Final = ROOT / "benchmarks/results/reliability_xeon_2cores_202611.json"


def run_tests() -> dict[str, str]:
    """Run the test of every row; return passed, failed or skipped by `FILE::TEST`."""
    names = dict.fromkeys(f"tests/{row.file}::{row.test}" for row in ROWS)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *names]
        subprocess.run(words, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
        return outcomes(report.read_text())


def outcomes(junit: str) -> dict[str, str]:
    """Return each test's outcome from a report in JUnit's form; of a test with several cases the worst."""
    found: dict[str, str] = {}
    for case in ElementTree.fromstring(junit).iter("testcase"):  # noqa: S314  # pytest's own file
        parts = [part for part in str(case.get("classname")).split(".") if not part[:1].isupper()]  # but for a class
        name = f"{'/'.join(parts)}.py::{str(case.get('name')).partition('[')[0]}"
        outcome = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")
        found[name] = outcome if found.get(name, "passed") == "passed" else found[name]
    return found


def main() -> int:
    """Keep what is new, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run the tests of all rows")
    parser.add_argument("--junit", type=Path, action="append", default=[], help="a report of tests that ran")
    parser.add_argument("--campaign", action="append", default=[], metavar="NAME=FILE", help="a campaign's figures")
    asked = parser.parse_args()
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {"tests": {}, "campaigns": {}}
    kept["tests"] |= run_tests() if asked.run else {}
    for report in asked.junit:
        kept["tests"] |= outcomes(report.read_text())
    for given in asked.campaign:
        name, _, file = given.partition("=")
        figures: Mapping[str, Any] = json.loads(Path(file).read_text())
        kept["campaigns"][name] = figures
    wanted = {f"tests/{row.file}::{row.test}" for row in ROWS}
    kept["tests"] = {name: outcome for name, outcome in kept["tests"].items() if name in wanted}
    KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    written = ROOT / "docs/reliability.md"
    long_runs = re.search(
        r"^## Long runs\n.*?(?=^## |^The text of a step|\Z)", written.read_text(), re.DOTALL | re.MULTILINE
    )
    written.write_text(page(kept, long_runs=long_runs[0] if long_runs else ""))
    bad = sorted(name for name in wanted if kept["tests"].get(name) in ("failure", "error"))
    print(f"{len(wanted)} tests, {sum(kept['tests'].get(name) == 'passed' for name in wanted)} passed; failed: {bad}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
