"""A request's JSON in OpenAI's API, checked field by field: texts to write, or one clear refusal."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, final

from lmtrain.errors import DataError, suggest
from lmtrain.inference.chat import ChatFormat
from lmtrain.inference.generation import Request, ToolUse
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.sampling import Sampling
from lmtrain.inference.tools import calculator
from lmtrain.storage import foreign_json

MOST = 2**53  # larger numbers are not exact in JSON
TOKEN = re.compile(r"-?0{0,99}[0-9]{1,15}")  # bounded: `int` refuses thousands of digits
MAX_TEXTS, MAX_STOPS, MAX_LIKELIEST = 16, 16, 20
NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
SHARED = {*NUMBERS, "model", "n", "stream", "stream_options", "stop", "seed", "logit_bias", "top_k", "max_tokens"}
WITHOUT_EFFECT = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
# Other keys of OpenAI's API, and the values with which they ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}
CHAT_KEYS = SHARED | {"messages", "max_completion_tokens", "logprobs", "top_logprobs"}
COMPLETION_KEYS = SHARED | {"prompt", "logprobs"}


@final
@dataclass(frozen=True, kw_only=True)
class Asked:
    """One HTTP request's texts, and the way to send them."""

    requests: list[Request]
    is_chat: bool
    stream: bool = False
    include_usage: bool = False


def parse(content: bytes) -> dict[str, Any]:
    """Return a body's object.

    Raises:
        DataError: It is not a JSON object of UTF-8 text.
    """
    try:
        body = foreign_json.parse(content)
    except ValueError as problem:
        raise DataError(f"body: must be a JSON object ({problem}).") from problem
    if not isinstance(body, dict):
        raise DataError("body: must be a JSON object.")
    return body


def read_chat(body: Mapping[str, Any], loaded: LoadedModel, written_by: ChatFormat, *, client: str) -> Asked:
    """Return the texts asked of `/v1/chat/completions`; raises DataError."""
    _require_known(body, CHAT_KEYS)
    prompt = written_by.prompt(_messages(_required(body, "messages")))
    room = max(1, loaded.model.max_context_tokens - len(prompt) + 1)
    most = _integer(body, "max_completion_tokens", least=1) or _integer(body, "max_tokens", least=1) or room
    wanted = _flag(body, "logprobs")
    num_likeliest = _integer(body, "top_logprobs", least=0, most=MAX_LIKELIEST)
    if num_likeliest and not wanted:
        raise DataError("top_logprobs: must come with logprobs=true.")
    return _asked(
        body,
        loaded,
        [prompt],
        client,
        most,
        (num_likeliest or 0) if wanted else None,
        stops=written_by.stops,
        tools=written_by.tools({calculator.__name__: calculator}),
        chat=True,
    )


def _messages(given: Any) -> Any:
    """Return messages with OpenAI's newer name of the system's role replaced."""
    if not isinstance(given, list):
        return given
    return [
        {**each, "role": "system"} if isinstance(each, dict) and each.get("role") == "developer" else each
        for each in given
    ]


def read_completion(body: Mapping[str, Any], loaded: LoadedModel, *, client: str) -> Asked:
    """Return the texts asked of `/v1/completions`; raises DataError."""
    _require_known(body, COMPLETION_KEYS)
    prompts = _prompts(_required(body, "prompt"), loaded)
    most = _integer(body, "max_tokens", least=1) or 16
    likeliest = _integer(body, "logprobs", least=0, most=MAX_LIKELIEST)
    return _asked(body, loaded, prompts, client, most, likeliest, stops=(), chat=False)


def _asked(
    body: Mapping[str, Any],
    loaded: LoadedModel,
    prompts: list[list[int]],
    client: str,
    num_new_tokens: int,
    num_likeliest: int | None,
    *,
    stops: tuple[str, ...],
    tools: ToolUse | None = None,
    chat: bool,
) -> Asked:
    num_texts = _integer(body, "n", least=1, most=MAX_TEXTS) or 1
    options = body.get("stream_options") or {}
    if not isinstance(options, Mapping):
        raise DataError('stream_options: must be an object like {"include_usage": true}.')
    sampling = _sampling(body)
    requests = [
        Request(
            prompt=prompt,
            num_new_tokens=num_new_tokens,
            sampling=sampling,
            end_ids=loaded.end_ids,
            stops=(*stops, *_stops(body)),
            seed=_integer(body, "seed", least=-MOST),
            index=place * num_texts + copy,
            num_likeliest=num_likeliest,
            client=client,
            tools=tools,
        )
        for place, prompt in enumerate(prompts)
        for copy in range(num_texts)
    ]
    return Asked(
        requests=requests, is_chat=chat, stream=_flag(body, "stream"), include_usage=_flag(options, "include_usage")
    )


def _sampling(body: Mapping[str, Any]) -> Sampling:
    given: dict[str, Any] = {name: value for name in NUMBERS if (value := _number(body, name)) is not None}
    bias = body.get("logit_bias") or {}
    if not isinstance(bias, Mapping) or not all(TOKEN.fullmatch(token) for token in bias):
        raise DataError('logit_bias: must be an object of numbers by token id, like {"50": -100}.')
    biases = {int(token): _number(bias, token) or 0.0 for token in bias}
    return Sampling(**given, top_k=_integer(body, "top_k", least=1), logit_bias=biases)


def _prompts(given: Any, loaded: LoadedModel) -> list[list[int]]:
    """Return the ids of a text, of texts, of ids, or of lists of ids."""
    if isinstance(given, str):
        return [loaded.encode(given)]
    if isinstance(given, list) and 0 < len(given) <= MAX_TEXTS and all(isinstance(each, str) for each in given):
        return [loaded.encode(each) for each in given]
    if _are_ids(given):
        return [given]
    if isinstance(given, list) and 0 < len(given) <= MAX_TEXTS and all(map(_are_ids, given)):
        return given
    raise DataError(f"prompt: must be a string, token ids, or up to {MAX_TEXTS} of either.")


def _are_ids(given: Any) -> bool:
    return isinstance(given, list) and len(given) > 0 and all(type(each) is int and abs(each) < MOST for each in given)


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    given = body.get("stop")
    stops = [] if given is None else [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise DataError(f"stop: must be a string or up to {MAX_STOPS} non-empty strings.")
    return tuple(stops)


def _required(body: Mapping[str, Any], name: str) -> Any:
    if name not in body:
        raise DataError(f"{name}: required.")
    return body[name]


def _require_known(body: Mapping[str, Any], known: Collection[str]) -> None:
    for name, value in body.items():
        asks_for_nothing = value is None or name in WITHOUT_EFFECT or value in NEUTRAL.get(name, ())
        if name not in known and not asks_for_nothing:
            raise DataError(f"{name}: not supported; valid keys: {', '.join(sorted(known))}.{suggest(name, known)}")


def _typed(body: Mapping[str, Any], name: str, is_it: Callable[[Any], bool], what: str) -> Any:
    value = body.get(name)
    if value is None or is_it(value):
        return value
    raise DataError(f"{name}: must be {what}, got {type(value).__name__}.")


def _flag(body: Mapping[str, Any], name: str) -> bool:
    return bool(_typed(body, name, lambda value: isinstance(value, bool), "true or false"))


def _number(body: Mapping[str, Any], name: str) -> float | None:
    value = _typed(body, name, lambda v: isinstance(v, int | float) and not isinstance(v, bool), "a number")
    if value is not None and not abs(value) <= MOST:  # NaN is not either
        raise DataError(f"{name}: must be a number from -{MOST} to {MOST}, got {str(value)[:20]}.")
    return None if value is None else float(value)


def _integer(body: Mapping[str, Any], name: str, *, least: int, most: int = MOST) -> int | None:
    value = _typed(body, name, lambda v: isinstance(v, int) and not isinstance(v, bool), "a whole number")
    if value is not None and not least <= value <= most:
        raise DataError(f"{name}: must be from {least} to {most}, got {str(value)[:20]}.")
    return value
