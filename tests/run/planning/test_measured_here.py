from lmtrain.run.planning.measured_here import kind_here, measurements_of
from lmtrain.run.settings import RunSettings
from tests.configs import config_with


def test_a_machine_that_was_never_measured_is_a_cpu(tmp_path):
    config = config_with(run=RunSettings(cache=str(tmp_path)))
    measured = measurements_of(config)
    assert measured.find("gpu") is None
    assert kind_here(config, measured) == "cpu"
