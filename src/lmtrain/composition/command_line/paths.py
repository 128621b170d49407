"""Where the configuration lives: `conf/` beside the sources, or the copy inside the installed wheel."""

from pathlib import Path

import lmtrain


def conf_folder() -> Path:
    """Return the folder of train.yaml and the groups."""
    package = Path(next(iter(lmtrain.__path__)))
    shipped = package / "conf"
    return shipped if shipped.is_dir() else package.parents[1] / "conf"
