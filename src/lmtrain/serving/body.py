"""A request's JSON in OpenAI's API: texts to write, or one clear refusal."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lmtrain.errors import DataError, suggest
from lmtrain.inference.chat import ChatFormat
from lmtrain.inference.generation import Request
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.sampling import Sampling
from lmtrain.storage import foreign_json
from lmtrain.tokenizers.chat import CallWords

MOST = 2**53  # larger numbers are not exact in JSON
MAX_TEXTS, MAX_STOPS = 16, 16
Count = Annotated[int, Field(ge=1, le=MOST)]
NumLikeliest = Annotated[int, Field(ge=0, le=20)]
Number = Annotated[float, Field(ge=-MOST, le=MOST)]
TokenId = Annotated[str, Field(pattern=r"^-?[0-9]{1,15}$")]


class StreamOptions(BaseModel):
    """How a stream ends."""

    include_usage: bool = False
    include_obfuscation: bool = False


class TextBody(BaseModel):
    """The keys of both kinds of texts; null is an absent key. Those after `stream_options` change nothing."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_TEXTS)] = 1
    max_tokens: Count | None = None
    temperature: Number = 1.0
    top_p: Number = 1.0
    min_p: Number = 0.0
    top_k: Count | None = None
    repetition_penalty: Number = 1.0
    presence_penalty: Number = 0.0
    frequency_penalty: Number = 0.0
    logit_bias: dict[TokenId, Number] = {}
    stop: list[Annotated[str, Field(min_length=1)]] = Field([], max_length=MAX_STOPS)
    seed: Annotated[int, Field(ge=-MOST, le=MOST)] | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    @model_validator(mode="before")
    @classmethod
    def without_nulls(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Leave out the keys that are null."""
        return {name: value for name, value in given.items() if value is not None}

    @field_validator("stop", mode="before")
    @classmethod
    def as_list(cls, given: Any) -> Any:
        """Return one text as a list."""
        return [given] if isinstance(given, str) else given

    def requests(
        self,
        loaded: LoadedModel,
        prompts: list[list[int]],
        *,
        num_new_tokens: int,
        num_likeliest: int | None,
        stops: tuple[str, ...] = (),
        calls: CallWords | None = None,
        scores_prompt: bool = False,
        is_json: bool = False,
    ) -> list[Request]:
        """Return `n` texts for each prompt."""
        names = (
            "temperature",
            "top_p",
            "min_p",
            "top_k",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        )
        bias = {int(token): value for token, value in self.logit_bias.items()}
        sampling = Sampling(**{name: getattr(self, name) for name in names}, logit_bias=bias)
        return [
            Request(
                prompt=prompt,
                num_new_tokens=num_new_tokens,
                sampling=sampling,
                end_ids=loaded.end_ids,
                stops=(*stops, *self.stop),
                seed=self.seed,
                index=place * self.n + copy,
                num_likeliest=num_likeliest,
                scores_prompt=scores_prompt,
                calls=calls,
                is_json=is_json,
            )
            for place, prompt in enumerate(prompts)
            for copy in range(self.n)
        ]


class ResponseFormat(BaseModel):
    """The form of an answer; schemas are not supported."""

    type: Literal["text", "json_object"]


class ChatBody(TextBody):
    """A request to `/v1/chat/completions`."""

    messages: Any
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: NumLikeliest = 0
    tools: list[dict[str, Any]] = []
    tool_choice: Literal["none", "auto"] = "auto"
    parallel_tool_calls: bool = True
    response_format: ResponseFormat = ResponseFormat(type="text")
    modalities: list[Literal["text"]] = ["text"]

    def texts(self, loaded: LoadedModel, written_by: ChatFormat) -> list[Request]:
        """Return the answers asked for.

        Raises:
            DataError: The messages are not a conversation, or the model cannot do what is asked.
        """
        tools = self.tools if self.tool_choice == "auto" else []
        if tools and written_by.calls is None:
            raise DataError(f"tools: the {written_by.name} chat format of this model has no calls.")
        if self.top_logprobs and not self.logprobs:
            raise DataError("top_logprobs: must come with logprobs=true.")
        prompt = written_by.prompt(self.messages, tools)
        room = max(1, loaded.model.max_context_tokens - len(prompt) + 1)
        return self.requests(
            loaded,
            [prompt],
            num_new_tokens=self.max_completion_tokens or self.max_tokens or room,
            num_likeliest=self.top_logprobs if self.logprobs else None,
            stops=written_by.stops,
            calls=written_by.calls if tools else None,
            is_json=self.response_format.type == "json_object",
        )


class CompletionBody(TextBody):
    """A request to `/v1/completions`."""

    prompt: Any
    logprobs: NumLikeliest | None = None
    echo: bool = False
    suffix: Literal[""] = ""
    best_of: Literal[1] = 1

    def texts(self, loaded: LoadedModel) -> list[Request]:
        """Return the continuations asked for."""
        prompts = _prompts(self.prompt, loaded)
        return self.requests(
            loaded,
            prompts,
            num_new_tokens=self.max_tokens or 16,
            num_likeliest=self.logprobs,
            scores_prompt=self.echo and self.logprobs is not None,
        )


def parse(content: bytes, kind: type[TextBody]) -> Any:
    """Return a body of a kind.

    Raises:
        DataError: It is not a JSON object of UTF-8 text, or a key or value is not supported.
    """
    try:
        body = foreign_json.parse(content)
        if not isinstance(body, dict):
            raise DataError("body: must be a JSON object.")
        return kind.model_validate(body)
    except ValidationError as problem:
        raise DataError(_first_line(problem, kind)) from problem
    except ValueError as problem:
        raise DataError(f"body: must be a JSON object ({problem}).") from problem


def _first_line(problem: ValidationError, kind: type[TextBody]) -> str:
    first = problem.errors(include_url=False, include_context=False)[0]
    key, known = str(first["loc"][0]), sorted(kind.model_fields)
    if first["type"] == "extra_forbidden":
        return f"{key[:80]}: not supported; valid keys: {', '.join(known)}.{suggest(key, known)}"
    if first["type"] == "missing":
        return f"{key}: required."
    return f"{key}: {first['msg'].replace('Input should', 'must')}, got {str(first['input'])[:80]}."


def _prompts(given: Any, loaded: LoadedModel) -> list[list[int]]:
    """Return the ids of a text, of texts, of ids, or of lists of ids."""
    several = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    if len(several) > MAX_TEXTS or not all(isinstance(each, str) or _are_ids(each) for each in several):
        raise DataError(f"prompt: must be a string, token ids, or up to {MAX_TEXTS} of either.")
    return [loaded.encode(each) if isinstance(each, str) else each for each in several]


def _are_ids(given: Any) -> bool:
    return isinstance(given, list) and len(given) > 0 and all(type(each) is int and abs(each) < MOST for each in given)
