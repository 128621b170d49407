"""A stage of a plan in a process of its own: `python -m tests.benchmarks.stage_stand_in HOW REPORT`."""

import json
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    how, path = sys.argv[1], Path(sys.argv[2])
    if how == "fail":
        sys.stderr.write("RuntimeError: no such kernel\n")
        sys.exit(3)
    if how == "sleep":
        signal.pause()
    report = json.loads(path.read_text()) if path.is_file() else {"device": "", "is_toy": False, "parts": {}}
    report["parts"].setdefault("speed", []).append({"what": how})
    path.write_text(json.dumps(report))
