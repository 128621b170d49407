"""Decide on the lock's audit: `python .ci/audit.py PROGRAM WORDS` runs pip-audit, and reads its answer.

Exit 0: nothing is known but what known_vulnerabilities.txt lists with its reason. 1: something else is, an entry has no
reason or no effect, or the tool failed. 3: no database was reached. A listed one is an id (an alias counts) and why it
does not matter here.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

LISTED: Final = Path(__file__).with_name("known_vulnerabilities.txt")
FOUND, UNREACHED = 1, 3
# Of pip-audit 2.10, requests and urllib3, where a service is not reached or cannot serve.
NOT_REACHED: Final = re.compile(
    r"ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|NameResolutionError|Max retries exceeded"
    r"|Could not connect|\b50[234] (?:Server|Bad|Service|Gateway)"
)


def main(words: list[str], listed: str) -> int:
    """Run the tool, tell, and return the exit code."""
    reasons = dict(line.split(maxsplit=1) for line in _entries(listed) if len(line.split(maxsplit=1)) == 2)
    if bare := [line for line in _entries(listed) if line not in {f"{name} {why}" for name, why in reasons.items()}]:
        return _tell(f"{LISTED.name}: {bare[0]} has no reason behind it.", FOUND)
    done = subprocess.run([*words, "--format", "json"], capture_output=True, text=True, check=False)
    packages = _packages(done.stdout)
    if packages is None:
        sys.stderr.write(done.stderr)
        if NOT_REACHED.search(done.stderr):
            return _tell("NOT AUDITED: no database was reached. The lock is held by its hashes alone.", UNREACHED)
        return _tell(f"The audit failed (exit {done.returncode}): the lines above say why.", FOUND)
    if packages and all("skip_reason" in package for package in packages):  # an index without the database answers so
        return _tell(f"NOT AUDITED: no database was reached. {packages[0]['skip_reason']}", UNREACHED)
    return _decide(packages, reasons)


def _decide(packages: list[dict[str, Any]], reasons: dict[str, str]) -> int:
    found = [(package, each) for package in packages for each in package.get("vulns", [])]
    code, met = 0, set[str]()
    for package, each in found:
        names = {each["id"], *each.get("aliases", [])}
        met |= names
        known = next((reasons[name] for name in sorted(names) if name in reasons), None)
        mended = f"mended in {', '.join(each.get('fix_versions') or ['no version yet'])}"
        print(f"{package['name']} {package.get('version')}: {each['id']}, {known or mended}")
        code = code if known else FOUND
    for name in sorted(reasons.keys() - met):
        code = _tell(f"{LISTED.name}: {name} is of no package of the lock; take it out.", FOUND)
    for package in packages:
        if reason := package.get("skip_reason"):
            code = _tell(f"{package['name']} was not audited: {reason}", FOUND)
    return code or _tell(f"{len(packages)} packages, {len(found)} known vulnerabilities, all listed with a reason.", 0)


def _entries(listed: str) -> list[str]:
    lines = (line.partition("#")[0].split() for line in listed.splitlines())
    return [" ".join(line) for line in lines if line]


def _packages(said: str) -> list[dict[str, Any]] | None:
    """Return the audited packages of an answer, None where there is no answer."""
    try:
        return list(json.loads(said)["dependencies"])
    except (ValueError, KeyError, TypeError):
        return None


def _tell(line: str, code: int) -> int:
    print(line, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], LISTED.read_text()))
