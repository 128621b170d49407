"""Run every kind of model with each signature's shapes checked at run time; started as a process of its own.

The hook has to be in place before the models are imported, and must not stay for other tests.
"""

from jaxtyping import TypeCheckError, install_import_hook

with install_import_hook("lmtrain.models", "beartype.beartype"):
    import torch

    from lmtrain.models.attention.blocked import blocked
    from lmtrain.models.attention.eager import eager
    from lmtrain.models.gpt2 import GPT2
    from lmtrain.models.llama import Llama
    from lmtrain.models.mixture_of_experts import Experts
    from lmtrain.models.nano import nano
    from lmtrain.models.rope import LinearRopeScaling, RopeScaling

from lmtrain.losses.cross_entropy import CrossEntropy

SIZES = {"vocab_size": 61, "max_context_tokens": 32}
LAYERS = {"width": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "feed_forward_width": 48} | SIZES
MODELS = {
    "gpt2": lambda: GPT2(width=32, num_layers=2, num_heads=4, **SIZES),
    "llama": lambda: Llama(**LAYERS, rope_scaling=RopeScaling(), attention=eager),
    "qwen": lambda: Llama(**LAYERS, qk_norm=True, tie_embeddings=True, rope_scaling=LinearRopeScaling(factor=2.0)),
    "mistral": lambda: Llama(**LAYERS, window_tokens=4, attention=blocked),
    "experts": lambda: Llama(
        **LAYERS, experts=Experts(num_experts=4, num_experts_per_token=2, load_balance_weight=0.1)
    ),
    "llama with speed runs' options": lambda: Llama(
        **LAYERS,
        activation="relu_squared",
        qk_norm=True,
        qk_norm_scale=1.2,
        embedding_skip=True,
        embedding_smear=True,
        key_smear=True,
        num_bigram_buckets=16,
        value_embedding_layers=(1,),
    ),
    "nano": lambda: nano(depth=2, **SIZES),
}


def run(name: str) -> None:
    model = MODELS[name]()
    model.initialize_weights(torch.Generator().manual_seed(0))
    tokens = torch.randint(61, (2, 16))
    documents = torch.arange(16).div(5, rounding_mode="floor").int().expand(2, 16).contiguous()
    for given in (None, documents):
        model(tokens, tokens, CrossEntropy(), given).objective.backward()
        model(tokens, documents=given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(tokens, tokens, CrossEntropy()).objective.backward()
    try:
        model(tokens, documents=documents[:, :-1])
    except TypeCheckError:
        print(f"{name}: shapes hold, and one that does not is noticed")


for model_name in MODELS:
    run(model_name)
