import subprocess
import sys
from pathlib import Path

from tests import tiny


def test_no_import_settles_on_other_caches_before_the_config_is_looked_at(tmp_path: Path) -> None:
    """The import of torch's compiler settles on a folder and keeps it in the environment; the refusal is a late one."""
    script = (
        "import atexit, os, sys\n"
        "atexit.register(lambda: print('KEPT', os.environ.get('TORCHINDUCTOR_CACHE_DIR')))\n"
        "from lmtrain.cli.main import main\n"
        "sys.exit(main())"
    )
    environment = tiny.environment()
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    words = ["train", "debug=tiny", "model.rope_base=-3", f"run.root={tmp_path}", f"run.cache={tmp_path / 'cache'}"]
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert f"KEPT {tmp_path / 'cache' / 'inductor'}" in done.stdout, done.stderr[-2000:]
