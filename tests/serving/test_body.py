import pytest

from lmtrain.errors import DataError
from lmtrain.inference.chat_format import chat_format
from lmtrain.serving.body import parse, read_chat, read_completion
from tests.serving.served import CONTEXT, small_model

LOADED = small_model()
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b'"\\ud800"', b'{"prompt": "\\ud800"}', b"[" * 100_000])
def test_what_is_no_object_of_text_is_refused(content):
    with pytest.raises(DataError, match="the body is no"):
        parse(content)


@pytest.mark.parametrize(
    ("value", "told"), [(float("nan"), "=nan"), (float("-inf"), "=-inf"), (10**40, "=1000"), ("1", " is str")]
)
def test_a_number_that_is_none_is_named(value, told):
    with pytest.raises(DataError, match=f"temperature{told}.*number"):
        read_completion({"prompt": "a", "temperature": value}, LOADED, client="")


def test_an_answer_may_take_what_the_context_leaves():
    (request,) = read_chat({"messages": MESSAGES}, LOADED, chat_format(LOADED), client="c").requests
    assert request.num_new_tokens == CONTEXT - len(request.prompt) + 1
    assert request.client == "c"


def test_prompts_are_texts_or_ids():
    def prompts(given):
        return [request.prompt for request in read_completion({"prompt": given}, LOADED, client="").requests]

    assert prompts("ab") == prompts([97, 98]) == [[97, 98]]
    assert prompts(["a", "b"]) == prompts([[97], [98]]) == [[97], [98]]
    for wrong in ([], [[]], [1.5], 7, [["a"]], [True], ["a"] * 99):
        with pytest.raises(DataError, match="prompt is neither"):
            prompts(wrong)


def test_settings_reach_the_requests():
    body = {"prompt": "a", "n": 2, "seed": 3, "stop": "x", "top_k": 4, "logit_bias": {"5": -1}, "user": "me"}
    asked = read_completion(body, LOADED, client="")
    assert [request.index for request in asked.requests] == [0, 1]
    one = asked.requests[0]
    assert (one.seed, one.stops, one.sampling.top_k, one.sampling.logit_bias) == (3, ("x",), 4, {5: -1.0})


def test_a_token_with_a_bias_is_a_whole_number_with_or_without_zeros_before_it():
    def biases(token):
        body = {"prompt": "a", "logit_bias": {token: -1}}
        return read_completion(body, LOADED, client="").requests[0].sampling.logit_bias

    assert biases("0000000000000000065") == {65: -1.0}
    for wrong in ("--5", "-", "", "5-", "a", "9" * 5000, "0" * 5000):
        with pytest.raises(DataError, match="logit_bias is no object of numbers by token"):
            biases(wrong)
