import typing

from lmtrain.accounting.options.typed_alone import TypedAlone
from lmtrain.run.settings import RunSettings


def test_a_marked_setting_keeps_its_own_type() -> None:
    assert typing.get_type_hints(RunSettings)["cache"] is str
    assert typing.get_args(TypedAlone[int])[0] is int
