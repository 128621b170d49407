"""Scores of a chunk by the kernel beside the eager ones; as a script, on a CPU by Triton's interpreter."""

import torch

from lmtrain.losses.chunked import AsTheyAre, Rule, score_logits, score_on_gpu

CASES = [  # tokens, vocabulary, z-loss weight, soft cap, gradients
    (7, 31, 0.0, None, True),
    (4, 9000, 1e-2, None, True),
    (5, 8192, 0.0, 15.0, True),
    (3, 20000, 1e-3, 3.0, True),
    (6, 257, 1e-2, 30.0, False),
    (0, 16, 0.0, None, True),
]
DTYPES = [(torch.float32, 2e-6), (torch.bfloat16, 8e-3)]  # the interpreter cuts off bits where a GPU rounds


def logits_of(num_tokens: int, vocab_size: int, dtype: torch.dtype, device: str = "cpu"):
    generator = torch.Generator().manual_seed(vocab_size)
    logits = (torch.randn(num_tokens, vocab_size, generator=generator) * 6).to(dtype)
    targets = torch.randint(vocab_size, (num_tokens,), generator=generator)
    targets[::3] = -100
    return logits.to(device), targets.to(device)


def check(logits, targets, rule, *, gradients, off_by):
    expected = score_logits(logits.clone(), targets, rule, gradients=gradients)
    found = score_on_gpu(logits, targets, rule, gradients=gradients)
    torch.testing.assert_close(found[0], expected[0], rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-6)
    assert (found[2] is None) == (expected[2] is None) == (not gradients)
    if found[2] is not None and expected[2] is not None:
        assert found[2].dtype == expected[2].dtype
        difference = found[2].float() - expected[2].float()
        assert difference.norm() <= off_by * expected[2].float().norm()
        if found[2].dtype == logits.dtype:
            assert found[2].data_ptr() == logits.data_ptr()


def main() -> None:
    """Check every case in both formats, and a chunk without a target."""
    for dtype, off_by in DTYPES:
        for num_tokens, vocab_size, z_loss_weight, soft_cap, gradients in CASES:
            rule = Rule(dtype, num_tokens, z_loss_weight, -100, soft_cap, AsTheyAre())
            check(*logits_of(num_tokens, vocab_size, dtype), rule, gradients=gradients, off_by=off_by)
            print("as eager", flush=True)
    logits, targets = logits_of(3, 100, torch.float32)
    rule = Rule(torch.float32, 3, 0.1, -100, None, AsTheyAre())
    check(logits, torch.full_like(targets, -100), rule, gradients=True, off_by=0.0)
    print("as eager")
    check_extremes()


def check_extremes() -> None:
    """Check rows with a first part of -inf, with huge logits and with NaN, and a target that is no word."""
    for dtype, huge in ((torch.float32, 1e30), (torch.float16, 6e4)):
        for soft_cap in (None, 15.0):
            logits, _ = logits_of(6, 9000, dtype)
            logits[0, :5000], logits[1, 4096:8192], logits[2, 7], logits[3, :4096] = -torch.inf, -torch.inf, huge, -huge
            logits[4], logits[5, 5000] = -huge, torch.nan
            rule = Rule(dtype, 6, 1e-3, -100, soft_cap, AsTheyAre())
            targets = torch.arange(8994, 9000)
            expected = score_logits(logits.clone(), targets, rule, gradients=True)
            found = score_on_gpu(logits, targets, rule, gradients=True)
            torch.testing.assert_close(found, expected, equal_nan=True, rtol=2e-3, atol=1e-4)
            print("as eager")
    logits, _ = logits_of(3, 50, torch.float32)
    nats, _, _ = score_on_gpu(
        logits, torch.tensor([-1, 50, 49]), Rule(torch.float32, 3, 0.0, 0, None, AsTheyAre()), gradients=True
    )
    assert nats.isnan().tolist() == [True, True, False]


if __name__ == "__main__":
    main()
