"""A request's JSON in OpenAI's API: texts to write, or one clear refusal.

https://platform.openai.com/docs/api-reference. A key that asks for nothing beyond the default is taken.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from lmtrain.errors import DataError, suggest
from lmtrain.inference.chat import ChatFormat
from lmtrain.inference.generation import Request
from lmtrain.inference.grammar import ANY_OBJECT, Grammar
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.sampling import Sampling
from lmtrain.storage import foreign_json
from lmtrain.tokenizers.chat import CallWords

MOST = 2**53  # larger numbers are not exact in JSON
MAX_TEXTS, MAX_STOPS = 16, 16
SAMPLING = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
Count = Annotated[int, Field(ge=1, le=MOST)]
NumLikeliest = Annotated[int, Field(ge=0, le=20)]
Number = Annotated[float, Field(ge=-MOST, le=MOST)]
Share = Annotated[float, Field(ge=0, le=1)]
TokenId = Annotated[str, Field(pattern=r"^-?[0-9]{1,15}$")]
Texts = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
]


class RequestRefused(DataError):
    """A refusal with OpenAI's `param` and `code`."""

    def __init__(self, param: str, rule: str, *, code: str = "invalid_value") -> None:
        super().__init__(f"{param}: {rule}")
        self.param, self.code = param, code


class Body(BaseModel):
    """Null is an absent key."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def without_nulls(cls, given: Any) -> Any:
        """Leave out the keys that are null."""
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class StreamOptions(Body):
    """How a stream ends."""

    include_usage: bool = False
    include_obfuscation: bool = False


class TextBody(Body):
    """The keys of every request; those from `user` on change nothing."""

    model: str | None = None
    stream: bool = False
    n: Annotated[int, Field(ge=1, le=MAX_TEXTS)] = 1
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=MOST)] = 1.0
    top_p: Share = 1.0
    min_p: Share = 0.0
    top_k: Annotated[int, Field(ge=-1, le=MOST)] = 0
    repetition_penalty: Number = 1.0
    presence_penalty: Number = 0.0
    frequency_penalty: Number = 0.0
    logit_bias: dict[TokenId, Number] = {}
    stop: Texts = Field([], max_length=MAX_STOPS)
    seed: Annotated[int, Field(ge=-MOST, le=MOST)] | None = None
    stream_options: StreamOptions = StreamOptions()
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None

    def requests(
        self,
        loaded: LoadedModel,
        prompts: Sequence[list[int]],
        *,
        num_new_tokens: int,
        num_likeliest: int | None,
        stops: tuple[str, ...] = (),
        **settings: Any,
    ) -> list[Request]:
        """Return `n` texts for each prompt."""
        bias = {int(token): value for token, value in self.logit_bias.items()}
        top_k = self.top_k if self.top_k > 0 else None
        sampling = Sampling(**{name: getattr(self, name) for name in SAMPLING}, top_k=top_k, logit_bias=bias)
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
                **settings,
            )
            for place, prompt in enumerate(prompts)
            for copy in range(self.n)
        ]


class Function(Body):
    """A function that the model may call."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    strict: bool = False


class Tool(Body):
    """A tool; only functions are known."""

    type: Literal["function"]
    function: Function


class JsonSchema(Body):
    """A schema by name."""

    name: str = ""
    description: str = ""
    schema_: dict[str, Any] = Field(default=ANY_OBJECT, alias="schema")
    strict: bool = False


class ResponseFormat(Body):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None


class ToolChoice(Body):
    """Whether a function must be called (`mode` none, auto or required), and which one; `name` None: any."""

    mode: str = "auto"
    name: str | None = None


def _tool_choice(given: Any) -> Any:
    """Return the choice of a word, or of {"type": "function", "function": {"name": ...}}."""
    if given in ("none", "auto", "required"):
        return ToolChoice(mode=given)
    if isinstance(given, Mapping) and given.get("type") == "function":
        function = given.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str):
            return ToolChoice(mode="required", name=name)
    raise ValueError("Input should be none, auto, required, or a function by its name")


Choice = Annotated[ToolChoice, BeforeValidator(_tool_choice)]


class ChatBody(TextBody):
    """A request to `/v1/chat/completions`."""

    messages: Any
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: NumLikeliest = 0
    tools: list[Tool] = []
    tool_choice: Choice = ToolChoice()
    parallel_tool_calls: bool = True
    functions: Annotated[list[Any], Field(max_length=0)] = []
    function_call: Literal["none", "auto"] = "auto"
    response_format: ResponseFormat = ResponseFormat()
    modalities: list[Literal["text"]] = ["text"]
    verbosity: Literal["medium"] = "medium"
    reasoning_effort: Literal["none"] = "none"

    def texts(self, loaded: LoadedModel, written_by: ChatFormat) -> list[Request]:
        """Return the answers asked for."""
        tools = [] if self.tool_choice.mode == "none" else [tool.model_dump(exclude_unset=True) for tool in self.tools]
        if tools and written_by.calls is None:
            raise RequestRefused("tools", f"the {written_by.name} chat format of this model has no calls.")
        if self.top_logprobs and not self.logprobs:
            raise RequestRefused("top_logprobs", "must come with logprobs=true.")
        prompt = written_by.prompt(self.messages, tools)
        _require_fit(prompt, loaded, "messages")
        room = max(1, loaded.model.max_context_tokens - len(prompt) + 1)
        return self.requests(
            loaded,
            [prompt],
            num_new_tokens=self.max_completion_tokens or self.max_tokens or room,
            num_likeliest=self.top_logprobs if self.logprobs else None,
            stops=written_by.stops,
            calls=written_by.calls if tools else None,
            grammar=self._grammar(loaded, written_by.calls),
        )

    def _grammar(self, loaded: LoadedModel, calls: CallWords | None) -> Grammar | None:
        """Return the grammar of a call that must come, or of the answer's JSON."""
        if self.tool_choice.mode == "required":
            name = self.tool_choice.name
            chosen = [tool.function.model_dump() for tool in self.tools if name in (None, tool.function.name)]
            if not chosen or calls is None:
                rule = f"must name one of tools, got {name}." if name else "required needs tools."
                raise RequestRefused("tool_choice", rule)
            return loaded.grammars.of_call(chosen, calls, key="tools")
        wanted = self.response_format
        if wanted.type == "text":
            return None
        if wanted.type == "json_object":
            return loaded.grammars.of_schema(ANY_OBJECT, key="response_format")
        if wanted.json_schema is None:
            raise RequestRefused("response_format.json_schema", "required.", code="missing_required_parameter")
        return loaded.grammars.of_schema(wanted.json_schema.schema_, key="response_format")


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
        for prompt in prompts:
            _require_fit(prompt, loaded, "prompt")
        return self.requests(
            loaded,
            prompts,
            num_new_tokens=self.max_tokens or 16,
            num_likeliest=self.logprobs,
            scores_prompt=self.echo and self.logprobs is not None,
        )


def _require_fit(prompt: Sequence[int], loaded: LoadedModel, key: str) -> None:
    most = loaded.model.max_context_tokens
    if len(prompt) > most:
        rule = f"must have at most {most} tokens, the model's context; got {len(prompt)}."
        raise RequestRefused(key, rule, code="context_length_exceeded")


def parse(content: bytes, kind: type[Body]) -> Any:
    """Return a body of a kind; each of its keys and values must be supported."""
    try:
        given = foreign_json.parse(content)
    except ValueError as problem:
        raise DataError(f"The body must be a JSON object ({problem}).") from problem
    if not isinstance(given, dict):
        raise DataError("The body must be a JSON object.")
    try:
        return kind.model_validate(given)
    except ValidationError as problem:
        raise _refusal(problem, kind) from problem


# OpenAI's codes for the kinds of pydantic's errors; other kinds are an `invalid_value`, or of a wrong type.
CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
}


def _refusal(problem: ValidationError, kind: type[Body]) -> RequestRefused:
    first = problem.errors(include_url=False)[0]
    path = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"] if part != "[key]")
    key = "".join(path)[1:][:80]
    code = CODES.get(first["type"], "invalid_type" if first["type"].endswith("_type") else "invalid_value")
    if code == "unknown_parameter":
        known = sorted(kind.model_fields)
        rule = f"not supported; valid keys: {', '.join(known)}.{suggest(key, known)}"
    elif code == "missing_required_parameter":
        rule = "required."
    else:
        rule = first["msg"].removeprefix("Value error, ").replace("Input should", "must")
        rule = f"{rule}, got {str(first['input'])[:80]}."
    return RequestRefused(key, rule, code=code)


def _prompts(given: Any, loaded: LoadedModel) -> list[list[int]]:
    """Return the ids of a text, of texts, of ids, or of lists of ids."""
    several = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    if len(several) > MAX_TEXTS or not all(isinstance(each, str) or _are_ids(each) for each in several):
        raise RequestRefused("prompt", f"must be a string, token ids, or up to {MAX_TEXTS} of either.")
    return [loaded.encode(each) if isinstance(each, str) else each for each in several]


def _are_ids(given: Any) -> bool:
    return isinstance(given, list) and len(given) > 0 and all(type(each) is int and abs(each) < MOST for each in given)
