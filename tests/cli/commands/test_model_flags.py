import argparse

import pytest

from lmtrain.cli.commands.model_flags import add_model, add_sampling, read_model, read_sampling
from lmtrain.errors import ConfigurationError


def parsed(*words, run="runs/x"):
    parser = argparse.ArgumentParser()
    add_model(parser)
    add_sampling(parser)
    return parser.parse_args([str(run), *words])


def test_flags_become_settings():
    sampling = read_sampling(parsed("--top-k", "0", "--top-p", "0.9", "--temperature", "0"))
    assert (sampling.top_k, sampling.top_p, sampling.temperature) == (None, 0.9, 0.0)
    assert read_sampling(parsed()).top_k == 50
    assert read_sampling(parsed(), temperature=1.5).temperature == 1.5


def test_impossible_flags_are_refused():
    with pytest.raises(ConfigurationError, match=r"top_p"):
        read_sampling(parsed("--top-p", "7"))


def test_a_folder_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match="RUN=runs/x must be a run"):
        read_model(parsed())
