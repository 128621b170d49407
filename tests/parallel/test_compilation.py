import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.nano import nano
from lmtrain.parallel.compilation import blocks, whole_model


def llama(num_layers=3):
    model = Llama(
        width=16, num_layers=num_layers, num_heads=2, feed_forward_width=32, vocab_size=61, max_context_tokens=8
    )
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model


@pytest.mark.slow
@pytest.mark.parametrize(("transform", "num_graphs"), [(blocks, 3), (whole_model, 1)])
def test_the_loss_and_gradients_of_a_compiled_model_are_those_of_the_eager_one(monkeypatch, transform, num_graphs):
    """Traced by the compiler and then run as it is, so that only what the tracing changes could differ."""
    counter, compile_with = CompileCounter(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda *args, **settings: compile_with(*args, **settings, backend=counter))
    torch._dynamo.reset()
    tokens = torch.randint(61, (2, 8), generator=torch.Generator().manual_seed(1))
    eager, compiled = llama(), transform().apply(llama())
    for model in (eager, compiled):
        total = model(tokens, tokens, CrossEntropy())
        total.objective.backward()
    assert counter.frame_count == num_graphs
    for (name, expected), (_, parameter) in zip(eager.named_parameters(), compiled.named_parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, msg=lambda text, name=name: f"{name}: {text}")


TINY = {"vocab_size": 61, "max_context_tokens": 256}
LAYERS = {"width": 32, "num_layers": 2, "num_heads": 4, "feed_forward_width": 48} | TINY
KINDS = {
    "gpt2": lambda: GPT2(width=32, num_layers=2, num_heads=4, **TINY),
    "llama": lambda: Llama(**LAYERS, embedding_skip=True, key_smear=True, value_embedding_layers=(1,)),
    "experts": lambda: Llama(
        **LAYERS, experts=Experts(num_experts=4, num_experts_per_token=2, load_balance_weight=0.1)
    ),
    "nano": lambda: nano(depth=3, window_pattern="SL", **TINY),  # three blocks, of three kinds
}


@pytest.mark.slow
@pytest.mark.parametrize("transform", [blocks, whole_model])
@pytest.mark.parametrize(  # borders that move are the harder case: without them one kind of model is enough
    ("build", "with_documents"),
    [*((build, True) for build in KINDS.values()), (KINDS["gpt2"], False)],
    ids=[*KINDS, "gpt2 without documents"],
)
def test_nothing_is_compiled_again_after_the_first_step_and_the_first_evaluation(
    monkeypatch, build, transform, with_documents
):
    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *args, **settings: compile_with(*args, **settings, backend="eager"))
    torch._dynamo.reset()
    counters.clear()
    model = transform().apply(build())
    model.initialize_weights(torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    num_graphs = []
    for _ in range(3):
        tokens = torch.randint(61, (2, 256), generator=generator)
        borders = torch.rand(2, 256, generator=generator) < 0.02  # other documents, and as many or fewer, each time
        documents = borders.int().cumsum(1, dtype=torch.int32) if with_documents else None
        model.train()
        model(tokens, tokens, CrossEntropy(), documents).objective.backward()
        with torch.no_grad():
            model.eval()
            model(tokens, tokens, CrossEntropy(), documents)
        num_graphs.append(counters["stats"]["unique_graphs"])
    assert num_graphs == num_graphs[:1] * 3
    assert not counters["graph_break"]
