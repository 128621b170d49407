"""A person's nn.Module that returns logits, trained by a run of ours and by hand."""

import inspect
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lmtrain.errors import ConfigurationError
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.base import LanguageModel
from lmtrain.models.own_model import LogitsModel
from tests import tiny


class Net(nn.Module):
    """Scores the next id from the last."""

    def __init__(self, vocab_size: int = 257) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = hidden + layer(hidden).tanh()
        return self.head(hidden)


class Raw(nn.Module):
    """Has a parameter that nothing initializes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


def test_loss_and_gradients_are_torchs() -> None:
    torch.manual_seed(0)
    net = Net()
    model: LanguageModel = LogitsModel(net, vocab_size=257, max_context_tokens=16)
    ids, targets = torch.randint(257, (2, 8)), torch.randint(257, (2, 8))
    total = model(ids, targets, CrossEntropy())
    expected = nn.functional.cross_entropy(net(ids).flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(total.objective, expected)
    assert [*model.blocks] == [*net.layers]
    assert model.shape().num_parameters == sum(one.numel() for one in net.parameters())


def test_a_module_on_meta_gets_the_weights_of_its_seed() -> None:
    with torch.device("meta"):
        models = [LogitsModel(Net, vocab_size=257, max_context_tokens=16) for _ in range(2)]
    for model in models:
        model.to_empty(device="cpu")
        model.initialize_weights(torch.Generator().manual_seed(3))
    states = [model.state_dict() for model in models]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    with pytest.raises(ConfigurationError, match="reset_parameters"):
        LogitsModel(Raw(), vocab_size=3, max_context_tokens=3).initialize_weights(torch.Generator())


def test_other_shapes_and_losses_are_refused() -> None:
    model = LogitsModel(Net(), vocab_size=300, max_context_tokens=16)
    with pytest.raises(ConfigurationError, match=r"model\.vocab_size"):
        model(torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(ConfigurationError, match="cross_entropy"):
        _ = model.output_head().weight


@pytest.mark.slow
def test_a_run_trains_it_from_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lmtrain

    source = f"import torch\nfrom torch import Tensor, nn\n\n{inspect.getsource(Net)}"
    (tmp_path / "my_package.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    conf = tmp_path / "conf" / "model"
    conf.mkdir(parents=True)
    (conf / "mine.yaml").write_text(
        "# My net\n_target_: lmtrain.models.own_model.LogitsModel\n"
        "module: {_target_: my_package.Net, vocab_size: 257}\n"
        "vocab_size: 257\nmax_context_tokens: ${batch.context_tokens}\n"
    )
    words = [*tiny.DATA, *tiny.BATCH, *tiny.QUIET, "model=mine", "budget.steps=3", "loss=cross_entropy"]
    words = [word for word in words if "text_samples" not in word and "vocab_size" not in word]
    run = lmtrain.train(
        *words, "callbacks.text_samples=null", allow_targets=["my_package."], config_dir=tmp_path / "conf"
    )
    assert len(run.losses) >= 1
