import torch

from lmtrain.inference.batch_answers import answer_all
from lmtrain.inference.chat_format import chat_format
from lmtrain.inference.generate import generate
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.paged_attention import paged
from lmtrain.inference.sampling_settings import Sampling
from lmtrain.models.gpt2 import GPT2
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer


def test_answers_are_those_of_each_conversation_alone_in_their_order():
    tokenizer = ByteLevelTokenizer(vocab_size=267, chat=True)
    model = GPT2(width=16, num_layers=1, num_heads=2, vocab_size=267, max_context_tokens=128, attention=paged)
    model.initialize_weights(torch.Generator().manual_seed(0))
    loaded = LoadedModel(name="a", model=model.eval(), tokenizer=tokenizer)
    asked = [[{"role": "user", "content": text}] for text in ("a longer question than the other", "b")]
    answers = answer_all(loaded, asked, num_new_tokens=5)
    for messages, answer in zip(asked, answers, strict=True):
        prompt = chat_format(loaded).prompt(messages)
        alone = generate(model, torch.tensor([prompt]), num_new_tokens=5, sampling=Sampling(temperature=0.0))
        assert answer.new_tokens == alone[0, len(prompt) :].tolist()
        assert answer.finish_reason == "length"
