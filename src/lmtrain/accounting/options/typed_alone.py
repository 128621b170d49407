"""Settings that no file decides: they run code, name code to run, or say where this person's things are sent."""

from typing import Annotated, TypeVar

T = TypeVar("T")

TypedAlone = Annotated[T, "a folder of options, perhaps a stranger's, does not decide it"]
