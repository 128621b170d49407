import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.verbs.completion import BASH, completion

PROBE = """
for line in "$@"; do
    COMP_LINE="$line" COMP_POINT=${#line} COMPREPLY=()
    _lmtrain; echo "${COMPREPLY[*]}"
done
complete -p lmtrain
"""


def test_bash_completes_the_last_word_behind_its_last_equals_sign() -> None:
    lines = ["lmtrain gen", "lmtrain train optimizer=muo", "python train.py schedule.warmdown_f", "python other.py x"]
    folder = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    answer = subprocess.run(
        ["bash", "-c", f"{BASH}{PROBE}", "bash", *lines], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert answer[0] == "generate"
    assert {"muon", "muon_nano"} <= set(answer[1].split())
    assert answer[2] == "schedule.warmdown_fraction="
    assert answer[3] == ""
    assert "-F _lmtrain" in answer[4]


def test_another_shell_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nearest valid: lmtrain completion bash"):
        completion(["tcsh"])
