import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.models.nano import nano, nano_width, short_window


def meta(depth, **settings):
    with torch.device("meta"):
        return nano(**({"depth": depth, "vocab_size": 32_768, "max_context_tokens": 2048} | settings))


@pytest.mark.parametrize(("depth", "width"), [(1, 128), (2, 128), (3, 256), (4, 256), (12, 768), (13, 896), (24, 1536)])
def test_width_is_64_a_layer_in_whole_heads(depth, width):
    assert nano_width(depth) == width


@pytest.mark.parametrize(("context", "window"), [(2048, 512), (256, 128), (1000, 256), (4096, 1024), (8, 128)])
def test_short_window_is_a_quarter_of_the_context_rounded_up(context, window):
    assert short_window(context) == window


def test_windows_repeat_the_pattern_and_end_whole():
    windows = [layer.window_tokens for layer in meta(6).shape().attention]
    assert windows == [512, 512, 512, None, 512, None]


@pytest.mark.parametrize(("depth", "layers"), [(1, ["0"]), (4, ["1", "3"]), (5, ["0", "2", "4"])])
def test_every_second_layer_to_the_last_has_value_embeddings(depth, layers):
    assert list(meta(depth).value_embeddings) == layers


def test_the_dial_sets_the_counts_of_the_reference():
    shape = meta(12).shape()
    assert shape.num_parameters == 286_261_730
    assert shape.num_matmul_parameters == 110_100_912


def test_one_step_of_a_nano_moves_every_parameter_sooner_or_later():
    model = nano(depth=2, vocab_size=61, max_context_tokens=8)
    model.initialize_weights(torch.Generator().manual_seed(0))
    tokens = torch.randint(61, (4, 8), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(4):
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 0}, r"model\.depth=0 is below 1; each dimension"),
        ({"window_pattern": "SSSX"}, r"model\.window_pattern='SSSX' .* nearest valid: SSS"),
        ({"logit_soft_cap": -1.0}, r"model\.logit_soft_cap=-1\.0 is not above 0"),
    ],
)
def test_impossible_settings_are_refused_by_key(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        meta(**({"depth": 4} | settings))
