import subprocess
import sys
from pathlib import Path

from lmtrain.interop.imported_folder import FACTS, WEIGHTS, is_imported


def test_an_imported_folder_has_facts_and_weights(tmp_path: Path) -> None:
    assert not is_imported(tmp_path)
    (tmp_path / FACTS).write_text("{}")
    assert not is_imported(tmp_path)
    (tmp_path / WEIGHTS).mkdir()
    assert is_imported(tmp_path)


def test_asking_loads_no_torch() -> None:
    code = "import sys, lmtrain.interop.imported_folder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
