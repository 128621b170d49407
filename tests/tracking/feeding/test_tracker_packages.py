import pytest

from lmtrain.errors import EnvironmentProblem
from lmtrain.tracking.trackers import require_package


def test_a_missing_package_is_refused_with_its_extra():
    with pytest.raises(EnvironmentProblem, match="logger=no_such needs the package no_such: "):
        require_package("no_such", logger="no_such")
    require_package("pytest", logger="pytest")
