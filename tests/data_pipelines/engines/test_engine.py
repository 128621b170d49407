from data_pipelines.engines.engine import Engine
from data_pipelines.engines.local import LocalEngine


def test_what_is_called_with_a_source_and_stages_is_an_engine():
    assert isinstance(LocalEngine(), Engine)
    assert not isinstance({"_target_": "data_pipelines.engines.local.LocalEngine"}, Engine)
