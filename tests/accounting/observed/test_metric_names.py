import re

from lmtrain.accounting.observed import metric_names
from tests.tiny import PROJECT

FILE = "accounting/observed/metric_names.py"


def test_each_name_is_spelled_in_its_file_alone():
    names = {value for name, value in vars(metric_names).items() if name.isupper() and isinstance(value, str)}
    of_validation = {f"validation/{name}" for name in ("loss", "bits_per_byte", "num_bytes", "read_tokens")}
    of_pairs = {"preference/accuracy", "preference/margin"}
    assert names == {"train/loss", "speed/loss_share", "reward/mean", "reward/equal_groups"} | of_validation | of_pairs
    # A default in a signature is read from the source, without its imports.
    spelled = re.compile(rf"""(?<!: str = )["']({"|".join(names)})["']""")
    for path in (PROJECT / "src/lmtrain").rglob("*.py"):
        assert path.as_posix().endswith(FILE) or not (found := spelled.findall(path.read_text())), (path, found)
