"""Logits of llama.cpp itself, by the C functions of the wheel `xllamacpp`."""

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import tiny

PLENTY = 512  # bytes: more than the settings' structures have, which are passed on as they come


class Settings(ctypes.Structure):
    """Settings of a model or a context; a context's first three numbers are tokens of it, a batch and a micro-batch."""

    _fields_ = (("content", ctypes.c_uint32 * (PLENTY // 4)),)


class Batch(ctypes.Structure):
    """Tokens; the caller fills the pointers."""

    _fields_ = (("num_tokens", ctypes.c_int32), ("pointers", ctypes.c_void_p * 6))


def load_library():
    """Return the library, and skip the test where there is none."""
    sys.path.append(str(tiny.PROJECT / ".cache" / "llama_cpp"))  # by `make llama-cpp`: it is not in the lock
    package = pytest.importorskip("xllamacpp")
    (file,) = Path(package.__file__).parent.glob("xllamacpp*.so")
    library = ctypes.CDLL(str(file))
    pointer, whole = ctypes.c_void_p, ctypes.c_int32
    for name, result, arguments in (
        ("llama_model_default_params", Settings, []),
        ("llama_context_default_params", Settings, []),
        ("llama_model_load_from_file", pointer, [ctypes.c_char_p, Settings]),
        ("llama_init_from_model", pointer, [pointer, Settings]),
        ("llama_batch_get_one", Batch, [pointer, whole]),
        ("llama_decode", whole, [pointer, Batch]),
        ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), [pointer, whole]),
        ("llama_free", None, [pointer]),
        ("llama_model_free", None, [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.llama_backend_init()
    return library


def logits_of(file, tokens, vocab_size):
    """Read tokens one after the other from an empty context of 64: [T] -> [T, V]."""
    library = load_library()
    model = library.llama_model_load_from_file(str(file).encode(), library.llama_model_default_params())
    assert model, "llama.cpp refuses the file; its log says why"
    settings = library.llama_context_default_params()
    settings.content[:3] = (64, 64, 64)
    context = library.llama_init_from_model(model, settings)
    rows = []
    for token in tokens:
        one = (ctypes.c_int32 * 1)(token)
        assert library.llama_decode(context, library.llama_batch_get_one(ctypes.cast(one, ctypes.c_void_p), 1)) == 0
        rows.append(np.ctypeslib.as_array(library.llama_get_logits_ith(context, -1), (vocab_size,)).copy())
    library.llama_free(context)
    library.llama_model_free(model)
    return np.stack(rows)
