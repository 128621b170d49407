import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.inference.sampling_settings import Sampling


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0 is below 0; nearest valid: 0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_k": 0}, "top_k=0 is below 1; nearest valid: 1"),
        ({"top_p": 1.5}, "top_p=1.5 is not a number from 0 to 1; nearest valid: 1"),
        ({"top_p": 0.0}, "top_p=0 is not above 0"),
        ({"min_p": -0.1}, "min_p=-0.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0"),
        ({"presence_penalty": float("inf")}, "presence_penalty=inf"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        Sampling(**settings)
