import pytest
import torch

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.training.objectives.grpo import MEASURES, GroupRelativePolicy, WrittenAnswers, group_relative_policy_facts
from lmtrain.training.objectives.rewards import right_text
from lmtrain.training.token_batch import TokenBatch
from tests.adapters.test_low_rank import small

REWARDS = {"text": right_text}


class FixedWriter:
    """Gives the same answers each time, and counts how often it is asked."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def __call__(self, model, batch, /, *, copies, seed) -> WrittenAnswers:
        self.seeds.append(seed)
        mask = torch.zeros(4, 11, dtype=torch.bool)
        mask[:3, 4:7] = True  # the last group's second row was not asked
        rewards = torch.tensor([1.0, 0.0, 2.0, 0.0])
        asked = torch.tensor([True, True, True, False])
        return WrittenAnswers(batch.ids.long(), mask, rewards, rewards[:, None], asked, asked)


def made(**settings):
    policy = GroupRelativePolicy(rewards=REWARDS, num_generations=2, **settings)
    writer = FixedWriter()
    policy.write_with(lambda _: writer)
    ids = torch.randint(250, (4, 12), generator=torch.Generator().manual_seed(0))
    return policy, writer, TokenBatch(ids, None, torch.ones(4, 11, dtype=torch.bool))


def test_a_step_reports_means_over_the_answers_that_were_asked() -> None:
    policy, _, batch = made()
    policy.begin(step=0, micro_step=0, seed=1)
    sums = policy(small(), batch)
    divisor, examples, *means = (sums.further / sums.further[1]).tolist()
    named = dict(zip(policy.measures, means, strict=True))
    assert (float(sums.further[0]), divisor * 3, examples) == (9, 9, 1)
    assert (named["reward/mean"], named["reward/text"], named["rollout/tokens"]) == (1, 1, 3)
    assert policy.measures[: len(MEASURES)] == MEASURES
    sums.objective.backward()


def test_answers_serve_their_steps_and_a_checkpoint_between_holds_them() -> None:
    policy, writer, batch = made(num_iterations=2)
    model = small()
    policy.begin(step=0, micro_step=0, seed=0)
    first = policy(model, batch)
    kept = policy.state()
    assert kept is not None
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    policy.begin(step=1, micro_step=0, seed=1)
    moved = policy(model, batch)
    assert policy.state() is None
    assert writer.seeds == [0]
    assert not torch.equal(first.objective, moved.objective)  # the ratio is no longer 1
    other, silent, _ = made(num_iterations=2)
    other.load(kept)
    other.begin(step=1, micro_step=0, seed=1)
    assert torch.equal(other(model, batch).objective, moved.objective)
    assert silent.seeds == []


def test_the_starting_model_is_kept_for_a_divergence() -> None:
    policy, _, batch = made(beta=0.5)
    assert group_relative_policy_facts(beta=0.5).keeps_start
    model = small()
    policy.keep_start(model)
    place = list(policy.measures).index("policy/divergence") + 2
    values = []
    for _ in range(2):
        policy.begin(step=0, micro_step=0, seed=0)
        values.append(float(policy(model, batch).further[place].detach()))
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.1)
    assert values[0] == pytest.approx(0, abs=1e-9)
    assert values[1] > 1e-4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_generations": 1}, "objective.num_generations=1 is below 2: an answer is compared with others"),
        ({"num_new_tokens": 0}, "objective.num_new_tokens=0 is below 1"),
        ({"epsilon": 0.0}, "objective.epsilon=0 is not above 0"),
        ({"beta": -1.0}, "objective.beta=-1 is not a number from 0 on"),
        ({"temperature": 0.0}, "objective.temperature=0 is not above 0; 1 is usual"),
        ({"weights": {"txet": 1.0}}, "objective.weights.txet weighs no reward; objective.rewards has text"),
        ({"rewards": {}}, "rewards nothing"),
    ],
)
def test_impossible_settings_are_refused(settings, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        GroupRelativePolicy(**{"rewards": REWARDS, **settings})


def test_text_without_questions_is_refused() -> None:
    policy, _, batch = made()
    with pytest.raises(DataError, match="take a source of messages"):
        policy(small(), batch.ids)
