import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lmtrain.data.manifest import Manifest
from lmtrain.data.shard_writer import ShardWriter, write_manifest
from lmtrain.data.shards import open_dataset
from lmtrain.errors import ConfigurationError
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.models.gpt2 import GPT2
from lmtrain.run.stored_runs.held_out_text import context_of, score_split, score_text
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer


def loaded(*, vocab_size=257, num_tokens=64, init_std=0.0) -> LoadedModel:
    model = GPT2(
        width=16, num_layers=1, num_heads=2, vocab_size=vocab_size, max_context_tokens=num_tokens, init_std=init_std
    )
    model.initialize_weights(torch.Generator().manual_seed(0))
    return LoadedModel(name="even", model=model, tokenizer=ByteLevelTokenizer())


@pytest.mark.parametrize("vocab_size", [257, 320])  # the second has ids beyond the tokenizer's
@pytest.mark.parametrize(("text", "context_tokens"), [("a", None), ("é" * 70, None), ("some words " * 9, 5)])
def test_a_model_without_an_opinion_needs_the_bits_of_its_vocabulary(vocab_size, text, context_tokens):
    found = score_text(loaded(vocab_size=vocab_size), text, context_tokens=context_tokens, batch_tokens=100)
    assert found.num_bytes == len(text.encode())
    bits = torch.tensor(float(vocab_size)).log2().item()
    assert found.bits_per_byte == pytest.approx(bits, abs=1e-6)


def test_the_context_is_that_of_the_model_unless_asked_for():
    assert context_of(loaded(num_tokens=64), None) == 64
    assert context_of(loaded(num_tokens=9000), None) == 2048
    assert context_of(loaded(num_tokens=9000), 9000) == 9000
    with pytest.raises(ConfigurationError, match=r"65 is over the model's 64; nearest valid: 64"):
        context_of(loaded(num_tokens=64), 65)


def test_conversations_of_a_folder_outside_any_run_are_scored_whole_as_if_alone(tmp_path):
    found, end, length = loaded(init_std=0.2), 256, 10
    conversations = torch.randint(256, (5, length), generator=torch.Generator().manual_seed(1))
    conversations[:, -1] = end
    learned = torch.arange(length).expand(5, -1) >= 4
    writer = ShardWriter(tmp_path, split="validation", dtype="uint16", shard_tokens=1000)
    ends = np.arange(length, 5 * length + 1, length)
    writer.append(conversations.flatten().numpy(), ends, learned.flatten().numpy().astype(np.uint8))
    splits = {"validation": writer.close(text_bytes=5 * length)}
    fingerprint = found.tokenizer.fingerprint
    write_manifest(
        tmp_path,
        Manifest(name="made", dtype="uint16", vocab_size=257, tokenizer_fingerprint=fingerprint, splits=splits),
    )
    score = score_split(found, open_dataset(tmp_path), split="validation", context_tokens=16, batch_tokens=64)
    inputs = F.pad(conversations, (1, 0), value=end)[:, :-1]
    nats = F.cross_entropy(found.model(inputs).transpose(1, 2), conversations, reduction="none")
    assert score.nats == pytest.approx(nats[learned].sum().item(), rel=1e-5)
