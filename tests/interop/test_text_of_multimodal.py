"""The text model of a folder that reads images too: Gemma 3 and Mistral 3 as transformers saves them."""

import pytest
import torch
import transformers

from lmtrain.interop.tokenizer_files import write_tokenizer
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.interop.hugging_face import LLAMA, VOCAB, imported

TEXT = {**LLAMA, "num_hidden_layers": 6, "head_dim": 8, "sliding_window": 16, "initializer_range": 0.02}
IMAGES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
KINDS = {
    "Gemma3": ({"query_pre_attn_scalar": 8}, {}),
    "Mistral3": ({"model_type": "mistral", "tie_word_embeddings": False}, {"model_type": "pixtral"}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inner", [False, True], ids=["as published", "as named in memory"])
def test_logits_are_those_of_the_whole_model_on_text(kind: str, inner: bool, tmp_path) -> None:
    text, images = KINDS[kind]
    config = getattr(transformers, f"{kind}Config")(text_config=TEXT | text, vision_config=IMAGES | images)
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    theirs.save_pretrained(tmp_path / "hf", save_original_format=not inner)
    write_tokenizer(ByteLevelTokenizer(vocab_size=VOCAB), tmp_path / "hf", max_context_tokens=64)
    ours = imported(tmp_path / "hf", tmp_path / "in")
    tokens = torch.randint(VOCAB, (2, 40))
    with torch.no_grad():
        expected = theirs(tokens).logits
        torch.testing.assert_close(ours(tokens), expected, atol=5e-6, rtol=5e-6)
