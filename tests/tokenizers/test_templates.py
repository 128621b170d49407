"""Conversations in a model's own chat template: ids as transformers has them, marks on the sampled tokens alone."""

import json

import numpy as np
import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.encode import WholeConversations
from lmtrain.inference.chat import chat_format
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.interop.tokenizer_files import end_ids, write_own_template
from lmtrain.tokenizers.chat import render, render_prompt
from lmtrain.tokenizers.conversation import ConversationError
from lmtrain.tokenizers.loading import load_tokenizer
from tests.tokenizers import layouts
from tests.tokenizers.conversations import ONE_TOOL, SPOKEN

# https://huggingface.co/mistralai/Mistral-7B-Instruct-v0.2: its marks are plain text
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
)
PLAIN = (  # no token ends an answer
    "{% for m in messages %}### {{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}### assistant:{% endif %}"
)
GEMMA = (  # a turn ends with another token than a text
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<turn|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FORGETS = "{% for m in messages %}[{{ m.content if loop.last or m.role == 'user' else '...' }}]{% endfor %}"
TALK = SPOKEN[1:]


def folder_of(path, template, *, begin="<s>", end="</s>", specials=("<s>", "</s>")):
    folder = layouts.write(path, layouts.byte_level(None, specials))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": begin, "eos_token": end}))
    return folder


def learned(tokenizer, messages):
    """Return each stretch of ids with loss, special tokens by name."""
    ids, mask = render(tokenizer, messages)
    names = {id_: name for name, id_ in tokenizer.special_tokens.items()}
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    stretches = (ids[start:stop].tolist() for start, stop in edges.reshape(-1, 2))
    return ["".join(names.get(id_) or tokenizer.decode([id_]) for id_ in ids) for ids in stretches]


@pytest.mark.parametrize(
    ("template", "answers"),
    [
        (MISTRAL, ["2,000 m.</s>", "Any time.</s>"]),
        (PLAIN, [" 2,000 m.\n", " Any time.\n</s>"]),
        (GEMMA, ["2,000 m.<turn|>", "Any time.<turn|>"]),
    ],
)
def test_ids_are_those_of_transformers_and_the_answers_alone_are_learned(template, answers, tmp_path):
    from transformers import AutoTokenizer

    specials = ("<s>", "</s>", *(("<turn|>",) if template is GEMMA else ()))
    folder = folder_of(tmp_path / "x", template, specials=specials)
    theirs = AutoTokenizer.from_pretrained(folder)
    load_tokenizer(folder).save(tmp_path / "saved")
    for tokenizer in (load_tokenizer(folder), load_tokenizer(tmp_path / "saved")):
        ids = theirs.apply_chat_template(TALK, return_dict=False)
        end = [tokenizer.end_of_text_id] if template is PLAIN else []
        assert render(tokenizer, TALK)[0].tolist() == ids + end
        prompt = theirs.apply_chat_template(TALK[:-1], add_generation_prompt=True, return_dict=False)
        assert render_prompt(tokenizer, TALK[:-1]).tolist() == prompt
        assert learned(tokenizer, TALK) == answers
        unweighted = [TALK[0], {**TALK[1], "weight": 0}, *TALK[2:]]
        assert learned(tokenizer, unweighted) == answers[1:]
    assert (tokenizer.special_tokens["<turn|>"] in end_ids(tokenizer)) if template is GEMMA else True


def test_what_a_template_cannot_write_is_skipped_and_counted(tmp_path):
    mistral, forgets = (load_tokenizer(folder_of(tmp_path / f"{n}", t)) for n, t in enumerate((MISTRAL, FORGETS)))
    rows = [("fine", TALK), ("system", SPOKEN), ("calls", ONE_TOOL)]
    documents = [Document(name, "", messages=tuple(messages)) for name, messages in rows]
    made = list(WholeConversations(tokenizer=mistral)(documents))
    assert made[0] == documents[0]
    assert [one.reason for one in made[1:] if isinstance(one, Skipped)] == [
        "messages: the model's chat template refuses them"
    ] * 2
    with pytest.raises(ConversationError, match=r"messages\[1\] .* its beginning has other tokens alone"):
        render(forgets, TALK)
    made = load_tokenizer(folder_of(tmp_path / "plain", PLAIN))
    with pytest.raises(ConversationError, match="writes no tool calls"):
        render(made, ONE_TOOL[:3])


def test_typed_special_tokens_stay_text(tmp_path):
    tokenizer = load_tokenizer(folder_of(tmp_path, MISTRAL))
    ids, _ = render(tokenizer, [{"role": "user", "content": "</s> a"}, {"role": "assistant", "content": "<s>"}])
    assert [id_ for id_ in ids.tolist() if id_ in tokenizer.special_tokens.values()] == [
        tokenizer.special_tokens["<s>"],
        tokenizer.end_of_text_id,
    ]


@pytest.mark.parametrize("begin", ["<s>", "</s>"])
def test_a_run_serves_and_exports_the_template_of_its_training(begin, tmp_path):
    """Behind an end-of-text token, as a document stands in training."""
    from transformers import AutoTokenizer

    folder = folder_of(tmp_path, MISTRAL, begin=begin)
    tokenizer = load_tokenizer(folder)
    end = tokenizer.end_of_text_id
    trained = [end, *render(tokenizer, TALK)[0].tolist()]
    assert trained[:3].count(end) == 1
    run = LoadedModel(name="x", model=None, tokenizer=tokenizer)  # pyright: ignore[reportArgumentType]
    asked = chat_format(run).prompt(TALK[:-1])
    assert trained[: len(asked)] == asked
    write_own_template(tokenizer, folder)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs.apply_chat_template(TALK, return_dict=False) == trained
    assert theirs.apply_chat_template(TALK[:-1], add_generation_prompt=True, return_dict=False) == asked
    again = load_tokenizer(folder)
    assert render(again, TALK)[0].tolist() == trained[1:]
