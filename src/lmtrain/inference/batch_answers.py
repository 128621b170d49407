"""A model's answers to many conversations at once, each with the likeliest tokens."""

from collections.abc import Mapping, Sequence

from lmtrain.inference.chat_format import chat_format
from lmtrain.inference.generation import Generation, Request
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.sampling_settings import Sampling


def answer_all(
    loaded: LoadedModel, conversations: Sequence[Sequence[Mapping[str, str]]], *, num_new_tokens: int
) -> list[Generation]:
    """Return the answer to each conversation's last turn, of at most so many tokens.

    A conversation beyond the model's context is read from its end.

    Raises:
        DataError: A conversation has no turn to answer.
    """
    style = chat_format(loaded)
    requests = [
        Request(
            prompt=style.prompt(messages),
            num_new_tokens=num_new_tokens,
            sampling=Sampling(temperature=0.0),
            end_ids=loaded.end_ids,
            stops=style.stops,
            index=index,
            slides=True,
        )
        for index, messages in enumerate(conversations)
    ]
    return loaded.engine().write(requests)
