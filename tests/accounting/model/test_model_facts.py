import json

from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.model.model_facts import LinearBytes, ModelFacts, facts_from_json
from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape

LOCAL, GLOBAL = AttentionShape(8, 64, 512), AttentionShape(8, 64)
FACTS = ModelFacts(
    shape=ModelShape(1000, 100, 900, 1000, (LOCAL, LOCAL, LOCAL, GLOBAL)),
    components={"embedding": 100, "feed_forward": 900},
    parameters=TrainedParameters(num_total=1000, num_hidden_matrix=800, num_largest_block=200, num_outside_blocks=200),
    activations=LinearBytes(fixed=100.0, per_sequence=50.0),
    block_workspace=LinearBytes(fixed=80.0, per_sequence=0.0),
    block_workspace_of_many=LinearBytes(fixed=0.0, per_sequence=5.0),
)


def test_facts_survive_a_file_and_layers_that_are_alike_share_a_line():
    content = json.loads(json.dumps(FACTS.to_json()))
    assert len(content["shape"]["attention"]) == 2
    assert facts_from_json(content) == FACTS
