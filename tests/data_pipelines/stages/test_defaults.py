from data_pipelines.stages.defaults import default_cleaning, default_deduplication
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.schema.check import check_node
from lmtrain.run.schema.node import instantiate


def test_the_defaults_of_python_are_those_of_the_command_line():
    config = compose_config([])
    for group, stages in (("cleaning", default_cleaning()), ("deduplicate", default_deduplication())):
        composed = {
            name: instantiate(check_node(node, key=f"{group}.{name}"), key=name) for name, node in config[group].items()
        }
        assert list(composed) == list(stages)
        for name, stage in stages.items():
            assert composed[name].fingerprint_parts() == stage.fingerprint_parts()
