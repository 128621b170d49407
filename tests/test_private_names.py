"""docs/private_names.md lists every private name of other packages that the sources use, and no other."""

import re

from tests import tiny
from tests.private_names import private_uses

PAGE = (tiny.PROJECT / "docs/private_names.md").read_text()
ROWS = re.findall(r"^\| `([\w/]+\.py)` \| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)


def test_the_table_has_every_private_name_that_is_used_and_no_other():
    listed = {name for _, names, _ in ROWS for name in re.findall(r"`(\w+)`", names)}
    assert listed == {name for _, name in private_uses()}
