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
        ({"repetition_penalty": 1e-46}, "repetition_penalty=1e-46 is below 1e-06"),
        ({"presence_penalty": float("inf")}, "presence_penalty=inf"),
        ({"frequency_penalty": -1e300}, r"frequency_penalty=-1e\+300 is below -1000000"),
        ({"logit_bias": {3: 1e300}}, r"logit_bias=1e\+300 of token 3 is not a number from -1e\+06 to 1e\+06"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias=nan of token 3"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        Sampling(**settings)
