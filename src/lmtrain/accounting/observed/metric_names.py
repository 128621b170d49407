"""Names of the metrics that several parts of the library read, as in metrics.jsonl and in every tracker."""

from typing import Final

TRAIN_LOSS: Final = "train/loss"  # nats a token, over the whole step and all ranks
VALIDATION_LOSS: Final = "validation/loss"  # nats a token
BITS_PER_BYTE: Final = "validation/bits_per_byte"
VALIDATION_BYTES: Final = "validation/num_bytes"  # of held-out text read: scores of other bytes do not compare
VALIDATION_TOKENS: Final = "validation/read_tokens"  # of the held-out split, from its start, those without loss too
REWARD: Final = "reward/mean"  # of the answers written for a step
ANSWER_TOKENS: Final = "rollout/tokens"  # of an answer, on average
TAUGHT_TOKENS: Final = "rollout/taught_tokens"  # of these, in groups with different rewards
EQUAL_GROUPS: Final = "reward/equal_groups"  # share of groups with one reward, of which nothing is learned
PREFERRED: Final = "preference/accuracy"  # share of a step's pairs whose chosen answer has the higher reward
MARGIN: Final = "preference/margin"  # of the chosen answers' rewards over the rejected ones'
LOSS_SHARE: Final = "speed/loss_share"  # of the timed tokens, those with loss: of speed/tokens_per_second and of MFU
EVALUATIONS: Final = ("evaluation/", "core/", "chat/", "lm_eval/", "answers/")  # how names of `lmtrain evaluate` begin


def averaged(name: str) -> str:
    """Return the name of a validation's metric for averaged weights: validation/ema_loss of validation/loss."""
    return name.replace("/", "/ema_", 1)


ALL_OF_THEM: Final = 0.97  # the first step's tokens are not timed


def speed_name(loss_share: float) -> str:
    """Name the tokens of a speed: those with loss, where others are a share to speak of."""
    return "tokens/s" if loss_share > ALL_OF_THEM else "tokens/s with loss"
