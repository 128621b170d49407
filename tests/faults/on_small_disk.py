"""`train.py` on a small disk over the working directory, of the first word's bytes; its files go to `kept`."""

import os
import runpy
import shutil
import sys
from pathlib import Path

from tests.small_disk import mount_small_disk

if __name__ == "__main__":
    here, num_bytes = Path.cwd(), int(sys.argv.pop(1))
    mount_small_disk(here, num_bytes=num_bytes)
    os.chdir(here)
    sys.argv[0] = str(Path(__file__).parents[2] / "train.py")
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        os.chdir("/")
        shutil.copytree(here, here.parent / "kept", dirs_exist_ok=True)
