import torch

from lmtrain.training.objectives.grpo import WrittenAnswers


def test_a_checkpoint_holds_plain_tensors_by_name() -> None:
    flags = torch.ones(2, dtype=torch.bool)
    written = WrittenAnswers(
        torch.ones(2, 4).long(), torch.ones(2, 3).bool(), torch.ones(2), torch.ones(2, 1), flags, flags
    )
    again = WrittenAnswers(**written.to_checkpoint())
    assert again.log_probs is None
    assert all(torch.equal(one, other) for one, other in zip(written[:-1], again[:-1], strict=True))
