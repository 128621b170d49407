"""The writing of answers in a step, before it learns from them: its FLOPs, and the seconds it takes at least.

Each written token passes the weights once, forward alone, and so does a prompt's, once a question where its answers
share it. A pass over one token of each text reads all weights from memory, which takes longer than its products where
few texts are written at a time.
"""

from dataclasses import dataclass

from lmtrain.accounting.training_plan.evaluation_plan import FORWARD_SHARE


@dataclass(frozen=True, kw_only=True)
class GenerationPlan:
    """Tokens written and prompts' tokens read a step on average, at most, and the FLOPs of both on all devices.

    `num_passes` of a device read the weights, of `weight_bytes`, at `memory_bytes_per_second`; None is not known.
    """

    written_tokens: int
    prompt_tokens: int
    flops_per_step: float
    num_passes: float
    weight_bytes: float
    memory_bytes_per_second: float | None = None

    def seconds(self, *, step_seconds: float, tokens_per_step: int) -> float:
        """Return a step's share of it, at the speed of training or of memory, the slower one."""
        computing = (self.written_tokens + self.prompt_tokens) * FORWARD_SHARE * step_seconds / tokens_per_step
        rate = self.memory_bytes_per_second
        return max(computing, self.num_passes * self.weight_bytes / rate if rate else 0.0)


def generation_plan(
    *,
    num_new_tokens: int,
    copies: int,
    num_uses: int,
    rows_per_step: int,
    micro_steps: int,
    context_tokens: int,
    flops_per_token: float,
    weight_bytes: float,
    memory_bytes_per_second: float | None,
) -> GenerationPlan:
    """Return the writing of `num_new_tokens` to each row; answers serve `num_uses` steps, `copies` share a prompt.

    `flops_per_token` are PaLM's, of forward and backward.
    """
    new = min(num_new_tokens, context_tokens)
    written = rows_per_step * new / num_uses
    prompts = rows_per_step * (context_tokens - new) / copies / num_uses
    return GenerationPlan(
        written_tokens=round(written),
        prompt_tokens=round(prompts),
        flops_per_step=(written + prompts) * flops_per_token * FORWARD_SHARE,
        num_passes=micro_steps * new / num_uses,
        weight_bytes=weight_bytes,
        memory_bytes_per_second=memory_bytes_per_second,
    )
