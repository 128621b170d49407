import json
import threading
import time
from typing import Any

import httpx
import openai
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from lmtrain.inference.generation import Request
from lmtrain.serving.body import ChatBody, CompletionBody
from tests.inference.cached import let_say
from tests.serving.served import CONTEXT, served, small_model

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def client():
    with served() as one:
        yield one


@pytest.fixture
def theirs(client):
    return openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0)


def test_openais_client_reads_a_whole_answer_and_the_same_as_a_stream(theirs):
    assert [model.id for model in theirs.models.list()] == ["small"]
    whole = theirs.chat.completions.create(model="small", logprobs=True, top_logprobs=2, **HELLO)
    assert whole.choices[0].finish_reason == "length"
    assert (whole.usage.completion_tokens, len(whole.choices[0].logprobs.content)) == (12, 12)
    stream = theirs.chat.completions.create(model="small", stream=True, stream_options={"include_usage": True}, **HELLO)
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"


def test_openais_other_forms_of_the_same_request_are_taken(theirs):
    plain = theirs.chat.completions.create(model="small", **HELLO).choices[0].message.content
    neutral = {"tools": [TOOL], "tool_choice": "none", "response_format": {"type": "text"}, "user": "me"}
    assert theirs.chat.completions.create(model="small", **HELLO, **neutral).choices[0].message.content == plain
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "Be kind."}, *HELLO["messages"]]
        answer = theirs.chat.completions.create(model="small", **{**HELLO, "messages": messages})
        assert answer.usage.prompt_tokens > 8
    assert theirs.models.retrieve("small").id == "small"
    with pytest.raises(openai.NotFoundError, match="must be small") as refused:
        theirs.models.retrieve("other")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_the_user_s_tools_come_back_to_the_user(theirs, monkeypatch, stream):
    specials = small_model().tokenizer.special_tokens
    call = [specials["<|tool_call_start|>"], *b'{"name": "weather", "arguments": {"city": "Ulm"}}']
    let_say(monkeypatch, *b"I look.", *call, specials["<|tool_call_end|>"], 256)
    asked = {**HELLO, "max_tokens": 100, "tools": [TOOL]}
    answer = theirs.chat.completions.create(model="small", stream=stream, **asked)
    if stream:
        *_, last = answer
        calls, reason = last.choices[0].delta.tool_calls, last.choices[0].finish_reason
    else:
        calls, reason = answer.choices[0].message.tool_calls, answer.choices[0].finish_reason
        assert answer.choices[0].message.content == "I look."
    assert [(one.function.name, json.loads(one.function.arguments)) for one in calls] == [("weather", {"city": "Ulm"})]
    assert reason == "tool_calls"
    call = {"id": calls[0].id, "type": "function", "function": calls[0].function.model_dump()}
    sent_back = [
        *HELLO["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": calls[0].id, "content": "12 degrees"},
    ]
    again = theirs.chat.completions.create(model="small", **{**HELLO, "messages": sent_back, "tools": [TOOL]})
    assert again.choices[0].finish_reason == "length"


AGE = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"]}
STRICT = {"name": "of_age", "strict": True, "schema": {**AGE, "additionalProperties": False}}
FORMATS = {"json_object": {}, "json_schema": {"json_schema": STRICT}}


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("form", FORMATS)
def test_an_answer_asked_for_as_json_follows_its_schema(theirs, temperature, form):
    pytest.importorskip("llguidance")
    asked = {**HELLO, "max_tokens": 200, "seed": 3, "temperature": temperature}
    form_asked = {"type": form, **FORMATS[form]}
    choice = theirs.chat.completions.create(model="small", response_format=form_asked, **asked).choices[0]
    if choice.finish_reason == "length":
        assert isinstance(from_json(choice.message.content, allow_partial="trailing-strings"), dict)
        return
    answer = json.loads(choice.message.content)
    assert isinstance(answer, dict)
    assert form == "json_object" or (answer.keys() == {"age"} and isinstance(answer["age"], int))


NOW = {**TOOL["function"], "name": "now", "parameters": {"type": "object", "additionalProperties": False}}


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_comes_back(theirs, stream):
    pytest.importorskip("llguidance")
    tools, named = [TOOL, {"type": "function", "function": NOW}], {"type": "function", "function": {"name": "now"}}
    asked = {**HELLO, "max_tokens": 100, "tools": tools, "tool_choice": named, "stream": stream}
    answer = theirs.chat.completions.create(model="small", **asked)
    choice = list(answer)[-1].choices[0] if stream else answer.choices[0]
    calls = choice.delta.tool_calls if stream else choice.message.tool_calls
    assert ([(one.function.name, one.function.arguments) for one in calls], choice.finish_reason) == (
        [("now", "{}")],
        "tool_calls",
    )


def test_the_responses_api_is_refused_with_the_address_that_answers(theirs):
    with pytest.raises(
        openai.NotFoundError, match="/v1/responses is not supported; use POST /v1/chat/completions"
    ) as refused:
        theirs.responses.create(model="small", input="Hello")
    assert refused.value.type == "invalid_request_error"


def test_turns_in_other_orders_are_put_into_the_one_of_training(theirs):
    def prompt_tokens(*turns):
        messages = [{"role": role, "content": text} for role, text in turns]
        answer = theirs.chat.completions.create(model="small", **{**HELLO, "messages": messages})
        return answer.usage.prompt_tokens

    ordered = prompt_tokens(("system", "A\n\nB"), ("user", "c\n\nd"))
    assert ordered == prompt_tokens(("system", "A"), ("user", "c"), ("user", "d"), ("developer", "B"))
    assert ordered + 4 == prompt_tokens(("system", "A\n\nB"), ("user", "c\n\nd"), ("assistant", "Well"))


def test_defaults_that_ask_for_nothing_are_taken(theirs):
    plain = theirs.chat.completions.create(model="small", **HELLO).choices[0].message.content
    nothing = {"n": 1, "top_p": 1, "logit_bias": {}, "stop": None, "seed": None, "tools": [], "tool_choice": "auto"}
    nothing |= {"presence_penalty": 0, "frequency_penalty": 0, "logprobs": False, "top_logprobs": 0, "store": False}
    nothing |= {"stream_options": None, "metadata": {}, "parallel_tool_calls": True, "service_tier": "auto"}
    extra = {"top_k": -1, "functions": [], "function_call": "none", "modalities": ["text"], "verbosity": "medium"}
    answer = theirs.chat.completions.create(model="small", **HELLO, **nothing, extra_body=extra)
    assert answer.choices[0].message.content == plain


def test_an_echo_scores_the_prompt_as_the_model_does(theirs):
    loaded, prompt = small_model(), [*b"Hello, you"]
    for _ in range(2):  # also where the prompt is in the cache
        asked = {"model": "small", "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 2}
        choice = theirs.completions.create(prompt=prompt, **asked).choices[0]
        expected = loaded.model(torch.tensor([prompt])).log_softmax(dim=-1)[0, :-1]
        scores = expected[range(len(prompt) - 1), prompt[1:]].tolist()
        assert choice.text.startswith("Hello, you")
        assert choice.logprobs.token_logprobs[0] is None
        assert choice.logprobs.token_logprobs[1:-1] == pytest.approx(scores, abs=1e-4)  # fp32, another order of sums
        best = [max(one.values()) for one in choice.logprobs.top_logprobs[1:-1]]
        assert best == pytest.approx(expected.max(dim=-1).values.tolist(), abs=1e-4)
        assert len(choice.logprobs.tokens) == len(prompt) + 1


def test_texts_of_one_prompt_differ_and_come_again_with_their_seed(theirs):
    asked = {"model": "small", "prompt": "ab", "max_tokens": 10, "n": 3, "seed": 5, "logprobs": 1}
    first, again = (theirs.completions.create(**asked) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert len(set(texts)) == 3
    assert [choice.text for choice in again.choices] == texts
    assert len(first.choices[0].logprobs.token_logprobs) == 10
    assert first.usage.prompt_tokens == 2


def test_a_common_system_text_is_read_once(theirs):
    system = {"role": "system", "content": "A long text that every conversation here begins with, word for word."}
    for question in ("One?", "Two?"):
        asked = {**HELLO, "messages": [system, {"role": "user", "content": question}]}
        usage = theirs.chat.completions.create(model="small", **asked).usage
    assert usage.prompt_tokens_details.cached_tokens >= 64


@pytest.mark.parametrize(
    ("body", "message", "param", "code"),
    [
        ({}, "messages: required", "messages", "missing_required_parameter"),
        ({**HELLO, "messages": [{"role": "wizard", "content": "x"}]}, "unknown role", "messages[0]", "invalid_value"),
        ({**HELLO, "messages": [{"role": "tool", "content": "4"}]}, "without a call", "messages[0]", "invalid_value"),
        ({**HELLO, "messages": [{"role": "user", "content": ""}]}, "empty content", "messages[0]", "invalid_value"),
        ({**HELLO, "messages": "Hello"}, "not a list of messages", "messages", "invalid_value"),
        ({**HELLO, "messages": True}, "not a list of messages", "messages", "invalid_value"),
        ({**HELLO, "temperature": -1}, "temperature: ", "temperature", "invalid_value"),
        ({**HELLO, "temperature": "hot"}, "must be a valid number", "temperature", "invalid_type"),
        ({**HELLO, "top_k": 10**400}, "top_k: ", "top_k", "invalid_value"),
        ({**HELLO, "n": 99}, "n: must be less than or equal to 16, got 99", "n", "invalid_value"),
        ({**HELLO, "max_tokens": True}, "must be a valid integer", "max_tokens", "invalid_type"),
        ({**HELLO, "temprature": 1}, "Did you mean 'temperature'?", "temprature", "unknown_parameter"),
        ({**HELLO, "response_format": {"type": "xml"}}, "must be 'text'", "response_format.type", "invalid_value"),
        ({**HELLO, "response_format": {"type": "json_schema"}}, "json_schema: required", "response_format.json_schema",
         "missing_required_parameter"),
        ({**HELLO, "tool_choice": "maybe"}, "must be none, auto, required", "tool_choice", "invalid_value"),
        ({**HELLO, "tool_choice": "required"}, "needs tools", "tool_choice", "invalid_value"),
        ({**HELLO, "logit_bias": {"a": 1}}, "logit_bias", "logit_bias.a", "invalid_value"),
        ({**HELLO, "logit_bias": {"999": 1}}, "token id 999", None, "invalid_value"),
        ({**HELLO, "top_logprobs": 2}, "must come with logprobs=true", "top_logprobs", "invalid_value"),
        ({**HELLO, "stop": [""]}, "stop[0]: ", "stop[0]", "invalid_value"),
        ({**HELLO, "messages": [{"role": "user", "content": "x" * 999}]}, f"at most {CONTEXT} tokens", "messages",
         "context_length_exceeded"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_clear_answer(theirs, body, message, param, code):
    with pytest.raises(openai.BadRequestError) as refused:
        theirs.post("/chat/completions", body=body, cast_to=object)
    assert message in refused.value.message
    assert (refused.value.param, refused.value.code) == (param, code)


def test_refusals_have_their_own_status(client):
    def post(content, **headers):
        sent = {"content-type": "application/json", **headers}
        return client.post("/v1/completions", content=content, headers=sent).status_code

    assert post(b"x" * (11 << 20)) == 413
    assert post(b"{}", **{"content-type": "text/plain"}) == 415  # what a page elsewhere could send
    assert [post(b"{}", host=host) for host in ("evil.example", "[::1]evil.example", "[::1", "")] == [403] * 4
    here = ("LOCALHOST", "127.0.0.1:1", "[::1]", "[::1]:8000", "localhost:80")
    assert [post(b"{}", host=host) for host in here] == [400] * len(here)
    assert post(b'{"model": "gpt-5", "prompt": "x"}') == 404
    assert client.get("/v1/completions").status_code == 405
    assert client.get("/v1/nothing").status_code == 404


KEYS = sorted({*ChatBody.model_fields, *CompletionBody.model_fields, "type", "role", "content"})


@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_request_of_any_bytes_is_answered_and_stops_nothing(client, content):
    for address in ("/v1/chat/completions", "/v1/completions"):
        answer = client.post(address, content=content, headers={"content-type": "application/json"})
        assert answer.status_code in {200, 400, 404}
    assert client.get("/health").json() == {"status": "ok"}


def test_a_hundred_clients_that_vanish_leave_nothing_behind():
    with served(num_texts=8) as client:
        body = {"prompt": "ab", "max_tokens": 200, "stream": True, "logit_bias": {"256": -100}}
        for number in range(100):
            with httpx.Client(base_url=client.base_url) as one:
                if number % 2:
                    with one.stream("POST", "/v1/completions", json=body) as answer:
                        next(answer.iter_raw())
                else:
                    with pytest.raises(httpx.TimeoutException):
                        one.post("/v1/completions", json={**body, "stream": False}, timeout=0.02)
        ends = time.monotonic() + 60
        while client.worker.num_running or client.worker.num_queued:
            assert time.monotonic() < ends
            time.sleep(0.01)
        assert client.worker.engine.is_idle
        assert client.post("/v1/completions", json={"prompt": "ab", "max_tokens": 2}).status_code == 200


def test_who_comes_when_too_many_wait_is_told_to_try_again():
    with served(num_texts=1, num_waiting=1) as client:
        body, written_on, worker = {"prompt": "ab", "max_tokens": 2}, threading.Event(), client.worker
        texts = [worker.engine.prepare(Request(prompt=[1], num_new_tokens=1)) for _ in range(2)]
        worker.submit(texts, lambda _: written_on.wait(30))
        answer = client.post("/v1/completions", json=body)
        written_on.set()
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"
        more = client.post("/v1/completions", json={**body, "n": 3})
        assert (more.status_code, more.headers.get("retry-after")) == (400, None)
        assert "at most 2" in more.json()["error"]["message"]


def test_a_key_is_asked_for_where_there_is_one():
    with served(api_key="a-key-of-sixteen-characters") as client:
        assert client.get("/v1/models").status_code == 401
        assert client.get("/health").status_code == 200
        headers = {"Authorization": "Bearer a-key-of-sixteen-characters", "Host": "any.example"}
        assert client.get("/v1/models", headers=headers).status_code == 200
