"""Tokenizers in the layouts that models have on the Hugging Face hub, small and trained here."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
TEXTS = [
    f"The same words, {n} times: def function_{n % 7}(argument): return {n}  # Straße № {n}\n" * 3 for n in range(60)
]
LLAMA_3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_SPLIT = LLAMA_3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
LLAMA_3_TOKENS = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write(folder: Path, content: dict, *, eos: object = None) -> Path:
    """Write a folder with a `tokenizer.json` and a `tokenizer_config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos} if eos else {}))
    return folder


def added(content: str, id_: int, *, special: bool = True, **flags: bool) -> dict:
    """Return an entry of `added_tokens`."""
    return {"id": id_, "content": content, **FLAGS, "special": special, **flags}


def byte_level(split: tokenizers.pre_tokenizers.PreTokenizer | None, special_tokens: tuple[str, ...]) -> dict:
    """Train a byte-level BPE whose special tokens come last, outside the model, as Llama 3 and Qwen have them."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes]) if split else as_bytes
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    size = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens(list(special_tokens))
    assert tokenizer.get_vocab_size() == size + len(special_tokens)
    return json.loads(tokenizer.to_str())


def gpt2(folder: Path) -> Path:
    """GPT-2: one special token, cut by the byte-level step itself."""
    return write(folder, byte_level(None, ("<|endoftext|>",)))


def llama_3(folder: Path) -> Path:
    """Llama 3: a split expression, `ignore_merges`, and a begin-of-text put in front of every text."""
    content = byte_level(pre_tokenizers.Split(tokenizers.Regex(LLAMA_3_SPLIT), "isolated"), LLAMA_3_TOKENS)
    content["model"]["ignore_merges"] = True
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    begin = ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[begin])
    return write(folder, json.loads(tokenizer.to_str()), eos="<|eot_id|>")


def qwen(folder: Path) -> Path:
    """Qwen: normalizes to NFC, digits alone, and control tokens that the file does not call special."""
    content = byte_level(pre_tokenizers.Split(tokenizers.Regex(QWEN_SPLIT), "isolated"), CHATML_TOKENS)
    content["normalizer"] = {"type": "NFC"}
    size = len(content["model"]["vocab"]) + len(CHATML_TOKENS)
    content["added_tokens"] += [
        added("<tool_call>", size, special=False),
        added("<|fim_prefix|>", size + 1, special=False),
    ]
    return write(folder, content, eos={"content": "<|im_end|>"})


def ends_turns(folder: Path) -> Path:
    """Special tokens as Gemma's, where the configuration names the end of a turn."""
    return write(folder, byte_level(None, ("<eos>", "<end_of_turn>")), eos="<end_of_turn>")


def sentencepiece(*, front: str) -> dict:
    """Train a BPE over characters with byte fallback; `front` says who puts a space before a text."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trained = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=list("</s>▁"), show_progress=False
    )
    tokenizer.train_from_iterator([text.replace("№", "") for text in TEXTS], trained)
    content = json.loads(tokenizer.to_str())
    pieces = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    pieces = [*pieces[:3], *(f"<0x{byte:02X}>" for byte in range(256)), *pieces[3:], "</", "s>"]
    content["model"]["vocab"] = {piece: id_ for id_, piece in enumerate(pieces)}
    content["model"]["merges"] += [["<", "/"], ["s", ">"], ["</", "s>"]]  # as made from a sentencepiece model's scores
    content["pre_tokenizer"] = None
    to_symbol = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    if front == "normalizer":
        content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, to_symbol]}
    elif front == "metaspace":
        scheme = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
        content["pre_tokenizer"] = scheme
    else:
        content["normalizer"] = to_symbol
    from_symbol = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    steps = [from_symbol, {"type": "ByteFallback"}, {"type": "Fuse"}]
    content["decoder"] = {"type": "Sequence", "decoders": steps}
    return content


def llama_2(folder: Path) -> Path:
    """Llama 2: a space put in front by the normalizer, and merges that could write `</s>`."""
    return write(folder, sentencepiece(front="normalizer"), eos="</s>")


def mistral(folder: Path) -> Path:
    """Mistral: a space put in front by the metaspace step."""
    return write(folder, sentencepiece(front="metaspace"), eos={"content": "</s>", "lstrip": False})


def gemma(folder: Path) -> Path:
    """Gemma: nothing in front, and entries of several spaces that are also added tokens."""
    content = sentencepiece(front="nobody")
    size = len(content["model"]["vocab"])
    content["model"]["vocab"]["▁▁"] = size
    content["model"]["merges"].insert(0, ["▁", "▁"])
    content["added_tokens"].append(added("▁▁", size, special=False))
    return write(folder, content)


USABLE = {"gpt2": gpt2, "llama_3": llama_3, "qwen": qwen, "llama_2": llama_2, "mistral": mistral, "gemma": gemma}
