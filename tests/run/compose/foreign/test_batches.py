import pytest

from lmtrain.run.compose.foreign.batches import batch_equivalent


@pytest.mark.parametrize(
    ("kind", "name", "typed", "words"),
    [
        ("of_a_step", "batch_size", {"batch_size": "8", "n_ctx": "512"}, "batch.tokens_per_step=4096"),
        ("of_a_step", "batch_size", {"batch_size": "true"}, "batch.micro_batch_sequences=auto"),
        ("of_a_step", "batch_size", {"batch_size": "x"}, ""),
        (
            "of_a_device",
            "device_batch_size",
            {"device_batch_size": "4", "nnodes": "2", "nproc_per_node": "2"},
            "batch.tokens_per_step=4096 batch.micro_batch_sequences=4",
        ),
        (
            "passes",
            "grad_accum",
            {"grad_accum": "2", "global_batch_size": "8", "devices": "2"},
            "batch.tokens_per_step=2048 batch.micro_batch_sequences=2",
        ),
        (
            "of_a_pass_in_tokens",
            "rank_microbatch_size",
            {"rank_microbatch_size": "2048", "data_loader.global_batch_size": "8K"},
            "batch.tokens_per_step=8000 batch.micro_batch_sequences=8",
        ),
    ],
)
def test_sizes_of_a_batch_elsewhere_are_tokens_of_a_step_and_sequences_of_a_pass(kind, name, typed, words):
    assert " ".join(batch_equivalent(kind, name, typed).words) == words
