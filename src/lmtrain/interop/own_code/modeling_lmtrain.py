"""A language model trained with lmtrain, for transformers: plain PyTorch, in this one file next to the weights.

`AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)`. The names of weights and settings are those of
lmtrain, whose tests hold this file to its own models. Nothing is cached: each new token reads the whole text again.
B batch, T tokens, D width, H heads, Hkv key and value heads, K head width, V vocabulary.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class LmtrainConfig(PretrainedConfig):
    """`settings` holds what lmtrain's model takes."""

    model_type = "lmtrain"

    def __init__(self, family: str = "llama", settings: dict[str, Any] | None = None, **others: Any) -> None:
        self.family, self.settings = family, settings or {}
        super().__init__(**others)


def first_of_document(documents: Tensor) -> Tensor:
    """Return True where another document begins: [B, T] -> [B, T]."""
    first = torch.ones_like(documents[:, :1], dtype=torch.bool)
    return torch.cat((first, documents[:, 1:] != documents[:, :-1]), dim=1)


def positions_in(documents: Tensor) -> Tensor:
    """Count tokens from the start of their document: [B, T] -> [B, T]."""
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    return index - index.masked_fill(~first_of_document(documents), 0).cummax(dim=1).values


def previous(x: Tensor, documents: Tensor | None) -> Tensor:
    """Shift by one token, zeros first: [B, T, ...] -> [B, T, ...]."""
    shifted = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1)
    if documents is None:
        return shifted
    first = first_of_document(documents)
    return shifted.masked_fill(first if x.ndim == 2 else first.unsqueeze(-1), 0)


def attend(q: Tensor, k: Tensor, v: Tensor, *, window: int | None, documents: Tensor | None) -> Tensor:
    """Attend causally: [B, H, T, K], [B, Hkv, T, K] twice -> [B, T, H * K]; a token sees `window` tokens, or all."""
    num_tokens, groups = q.shape[2], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    position = torch.arange(num_tokens, device=q.device)
    distance = position[:, None] - position[None, :]
    seen = distance >= 0
    if window is not None:
        seen = seen & (distance < window)
    if documents is not None:
        seen = seen & (documents[:, None, :, None] == documents[:, None, None, :])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)


def rms(x: Tensor, eps: float) -> Tensor:
    """Scale the last dim to a root mean square of 1, in fp32."""
    return F.rms_norm(x.float(), (x.shape[-1],), eps=eps)


class RMSNorm(nn.Module):
    """Root-mean-square norm, with a weight where it is learned."""

    def __init__(self, width: int, eps: float, *, learned: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) if learned else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise: [..., D] -> [..., D]."""
        scaled = rms(x, self.eps)
        return (scaled if self.weight is None else scaled * self.weight.float()).to(x.dtype)


class Smear(nn.Module):
    """Add the previous token's vector by a weight per dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, documents: Tensor | None) -> Tensor:
        """Mix: [B, T, D] -> [B, T, D]."""
        return x + (previous(x, documents) * self.weight).to(x.dtype)


class GatedSmear(nn.Module):
    """Add the previous token's vector by a gate on the token's first dimensions."""

    def __init__(self, gate_width: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(gate_width))
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, documents: Tensor | None) -> Tensor:
        """Mix: [B, T, D] -> [B, T, D]."""
        opened = torch.sigmoid((x[..., : self.gate.numel()] * self.gate).sum(dim=-1, keepdim=True))
        return x + (self.weight * opened * previous(x, documents)).to(x.dtype)


class Mix(nn.Module):
    """Add up two streams by two learned scalars."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.ones(1))
        self.second = nn.Parameter(torch.ones(1))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Mix: [..., D] twice -> [..., D]."""
        return (self.first * first + self.second * second).to(first.dtype)


class Backout(nn.Module):
    """Take a learned share of the middle of the stream away at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, middle: Tensor) -> Tensor:
        """Subtract: [B, T, D] twice -> [B, T, D]."""
        return x - (self.weight * middle).to(x.dtype)


class Embedding(nn.Module):
    """A table of tokens, one of hashed pairs, a norm and a smear, as far as there are."""

    def __init__(self, s: dict[str, Any]) -> None:
        super().__init__()
        width, buckets = s["width"], s["num_bigram_buckets"]
        self.token = nn.Embedding(s["vocab_size"], width)
        self.bigram = nn.Embedding(buckets, width) if buckets else None
        self.norm = RMSNorm(width, s["norm_eps"], learned=s["norm_weights"]) if s["embedding_norm"] else None
        gate = s["smear_gate_width"]
        self.smear = (GatedSmear(gate) if gate else Smear(width)) if s["embedding_smear"] else None

    def forward(self, tokens: Tensor, documents: Tensor | None) -> Tensor:
        """Embed: [B, T] -> [B, T, D]."""
        x = self.token(tokens)
        if self.bigram is not None:
            mixed = (previous(tokens + 1, documents) * 0x27D4EB2F) ^ (tokens * 0x165667B1)
            x = x + self.bigram((mixed ^ (mixed >> 15)) % self.bigram.num_embeddings)
        if self.norm is not None:
            x = self.norm(x)
        return x if self.smear is None else self.smear(x, documents)


def rotations(positions: Tensor, s: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of positions [B, T]: [B, T, 1, K / 2] each."""
    head_width = s["head_width"] or s["width"] // s["num_heads"]
    exponent = torch.arange(0, head_width, 2, device=positions.device).float() / head_width
    frequencies, scaling = 1.0 / s["rope_base"] ** exponent, s["rope_scaling"]
    if scaling and "original_context_tokens" in scaling:
        low, high = scaling["low_frequency_factor"], scaling["high_frequency_factor"]
        turns = scaling["original_context_tokens"] * frequencies / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequencies = frequencies * (kept + (1 - kept) / scaling["factor"])
    elif scaling:
        frequencies = frequencies / scaling["factor"]
    angles = positions.float()[..., None, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + K / 2): [B, T, H, K] -> [B, T, H, K]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class SelfAttention(nn.Module):
    """Grouped rotary attention with the model's norms, smears and value embeddings."""

    def __init__(self, s: dict[str, Any], *, window: int | None, has_values: bool) -> None:
        super().__init__()
        self.s, self.window = s, window
        heads, kv_heads = s["num_heads"], s["num_kv_heads"] or s["num_heads"]
        self.head_width = s["head_width"] or s["width"] // heads
        self.widths = tuple(each * self.head_width for each in (heads, kv_heads, kv_heads))
        self.qkv = nn.Linear(s["width"], sum(self.widths), bias=False)
        self.output = nn.Linear(self.widths[0], s["width"], bias=False)
        self.over_width = s["qk_norm_over"] == "width"
        is_learned = s["qk_norm"] and s["qk_norm_scale"] is None
        norm_widths = self.widths[:2] if self.over_width else (self.head_width, self.head_width)
        self.q_norm = RMSNorm(norm_widths[0], s["norm_eps"]) if is_learned else None
        self.k_norm = RMSNorm(norm_widths[1], s["norm_eps"]) if is_learned else None
        self.key_smear = Smear(self.widths[1]) if s["key_smear"] else None
        gate = s["value_gate_width"]
        self.value_gate = nn.Linear(gate, kv_heads, bias=False) if has_values and gate else None
        self.value_mix = Mix() if has_values and not gate else None

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], documents: Tensor | None, embedded_values: Tensor | None
    ) -> Tensor:
        """Mix tokens: [B, T, D] -> [B, T, D]."""
        q, k, v = self.qkv(x).split(self.widths, dim=-1)
        if embedded_values is not None:
            v = self._with_embedding(v, embedded_values, x)
        if self.key_smear is not None:
            k = self.key_smear(k, documents)
        q, k = (rotate(self._normed(*each), *rotary) for each in ((q, self.q_norm), (k, self.k_norm)))
        q = q * self.s["attention_multiplier"]
        heads = (each.transpose(1, 2) for each in (q, k, self._heads(v)))
        return self.output(attend(*heads, window=self.window, documents=documents))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_width))

    def _normed(self, x: Tensor, norm: RMSNorm | None) -> Tensor:
        if norm is not None:
            return self._heads(norm(x)) if self.over_width else norm(self._heads(x))
        scale, heads = self.s["qk_norm_scale"], self._heads(x)
        return heads if scale is None else rms(heads, self.s["norm_eps"]).to(x.dtype) * scale

    def _with_embedding(self, v: Tensor, embedded: Tensor, x: Tensor) -> Tensor:
        if self.value_gate is None:
            assert self.value_mix is not None
            return self.value_mix(v, embedded)
        gate = 2 * torch.sigmoid(self.value_gate(x[..., : self.value_gate.in_features]))
        return v + (gate.unsqueeze(-1) * self._heads(embedded)).flatten(2).to(v.dtype)


class FeedForward(nn.Module):
    """SwiGLU or squared ReLU."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        super().__init__()
        self.activation = activation
        if activation == "swiglu":
            self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        else:
            self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token: [B, T, D] -> [B, T, D]."""
        if self.activation == "swiglu":
            gate, up = self.gate_up(x).chunk(2, dim=-1)
            return self.down(F.silu(gate) * up)
        return self.down(F.relu(self.up(x)).square())


class LlamaBlock(nn.Module):
    """Attention, then a feed-forward, each normalised before and added after."""

    def __init__(self, s: dict[str, Any], layer: int) -> None:
        super().__init__()
        pattern, window = s["window_pattern"], s["window_tokens"]
        if pattern and pattern[layer % len(pattern)] == "L":
            window = None
        self.embedding_skip = Mix() if s["embedding_skip"] else None
        self.attention_norm = RMSNorm(s["width"], s["norm_eps"], learned=s["norm_weights"])
        self.self_attention = SelfAttention(s, window=window, has_values=layer in s["value_embedding_layers"])
        self.feed_forward_norm = RMSNorm(s["width"], s["norm_eps"], learned=s["norm_weights"])
        self.feed_forward = FeedForward(s["width"], s["feed_forward_width"], s["activation"])

    def forward(
        self,
        x: Tensor,
        embedded: Tensor,
        rotary: tuple[Tensor, Tensor],
        documents: Tensor | None,
        embedded_values: Tensor | None,
    ) -> Tensor:
        """Transform the stream: [B, T, D] -> [B, T, D]."""
        if self.embedding_skip is not None:
            x = self.embedding_skip(x, embedded)
        x = x + self.self_attention(self.attention_norm(x), rotary, documents, embedded_values)
        return x + self.feed_forward(self.feed_forward_norm(x))


class LlamaModel(nn.Module):
    """lmtrain's Llama with all of its options."""

    def __init__(self, s: dict[str, Any]) -> None:
        super().__init__()
        self.s = s
        self.embedding = Embedding(s)
        self.layers = nn.ModuleList(LlamaBlock(s, layer) for layer in range(s["num_layers"]))
        heads = s["num_heads"]
        value_width = (s["num_kv_heads"] or heads) * (s["head_width"] or s["width"] // heads)
        tables = {str(layer): nn.Embedding(s["vocab_size"], value_width) for layer in s["value_embedding_layers"]}
        self.value_embeddings = nn.ModuleDict(tables)
        self.backout = Backout() if s["backout"] else None
        self.final_norm = RMSNorm(s["width"], s["norm_eps"], learned=s["norm_weights"])
        self.head = None if s["tie_embeddings"] else nn.Linear(s["width"], s["vocab_size"], bias=False)

    def forward(self, tokens: Tensor, positions: Tensor, documents: Tensor | None) -> Tensor:
        """Run the layers and the last norm: [B, T] -> [B, T, D]."""
        rotary = rotations(positions, self.s)
        x = middle = embedded = self.embedding(tokens, documents)
        for index, block in enumerate(self.layers):
            name = str(index)
            values = self.value_embeddings[name](tokens) if name in self.value_embeddings else None
            x = block(x, embedded, rotary, documents, values)
            if index == len(self.layers) // 2:
                middle = x
        return self.final_norm(x if self.backout is None else self.backout(x, middle))


class LmtrainForCausalLM(PreTrainedModel, GenerationMixin):
    """Predict the next token."""

    config_class = LmtrainConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _no_split_modules = ["LlamaBlock"]  # noqa: RUF012

    def __init__(self, config: LmtrainConfig) -> None:
        super().__init__(config)
        self.model = LlamaModel(config.settings)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the table of tokens."""
        return self.model.embedding.token

    def get_output_embeddings(self) -> nn.Module | None:
        """Return the head, None where it is the table of tokens."""
        return self.model.head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        **others: Any,
    ) -> CausalLMOutput:
        """Score the next token: [B, T] -> logits [B, T, V], and the mean loss of labels [B, T], -100 left out.

        The mean is over `num_items_in_batch`, the targets of a step of several batches; None: over this batch.
        What `attention_mask` leaves out on either side is a separate document.
        """
        del others
        most = self.config.settings["max_context_tokens"]
        if input_ids.shape[1] > most:
            raise ValueError(f"{input_ids.shape[1]} tokens are more than the {most} that this model was built for.")
        documents = None if attention_mask is None or bool(attention_mask.all()) else attention_mask.long()
        positions = positions_in(torch.zeros_like(input_ids) if documents is None else documents)
        hidden = self.model(input_ids, positions, documents)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        head = self.model.head or self.model.embedding.token
        logits = F.linear(hidden[:, kept], head.weight)
        if cap := self.config.settings.get("logit_soft_cap"):
            logits = cap * torch.tanh(logits.float() / cap)
        loss = None
        if labels is not None:
            targets = labels[:, 1:].flatten()
            sums = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets, ignore_index=-100, reduction="sum")
            loss = sums / ((targets != -100).sum() if num_items_in_batch is None else num_items_in_batch)
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(  # pyright: ignore[reportIncompatibleMethodOverride]  # releases 4 and 5 differ
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Any
    ) -> dict[str, Any]:
        """Return the whole text: nothing is cached."""
        del others
        return {"input_ids": input_ids, "attention_mask": attention_mask}
