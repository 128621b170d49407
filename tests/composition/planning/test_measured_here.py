from lmtrain.composition.planning.measured_here import kind_here, measurements_of


def test_a_machine_that_was_never_measured_is_a_cpu(tmp_path):
    config = {"run": {"cache": str(tmp_path)}, "trainer": {"accelerator": "auto"}}
    measured = measurements_of(config)
    assert measured.find("gpu") is None
    assert kind_here(config, measured) == "cpu"
