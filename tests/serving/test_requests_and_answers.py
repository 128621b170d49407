import json

import pytest

from lmtrain.errors import DataError
from lmtrain.inference.chat import chat_format
from lmtrain.serving.body import ChatBody, CompletionBody, parse
from tests.serving.served import CONTEXT, small_model

LOADED = small_model()


def completion(**body):
    return parse(json.dumps(body).encode(), CompletionBody).texts(LOADED)


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b'"\\ud800"', b'{"prompt": "\\ud800"}', b"[" * 100_000])
def test_what_is_no_object_of_text_is_refused(content):
    with pytest.raises(DataError, match="body must be a JSON object"):
        parse(content, CompletionBody)


def test_an_answer_may_take_what_the_context_leaves():
    body = parse(b'{"messages": [{"role": "user", "content": "Hello"}], "top_p": null}', ChatBody)
    (request,) = body.texts(LOADED, chat_format(LOADED))
    assert request.num_new_tokens == CONTEXT - len(request.prompt) + 1


def test_prompts_are_texts_or_ids():
    def prompts(given):
        return [request.prompt for request in completion(prompt=given)]

    assert prompts("ab") == prompts([97, 98]) == [[97, 98]]
    assert prompts(["a", "b"]) == prompts([[97], [98]]) == [[97], [98]]
    for wrong in ([], [[]], [1.5], 7, [["a"]], [True], ["a"] * 99):
        with pytest.raises(DataError, match="prompt: must be"):
            prompts(wrong)
