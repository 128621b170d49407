import pytest

from lmtrain.accounting.batches import Batch
from lmtrain.errors import ConfigurationError
from lmtrain.run.schema.targets import find_target


def test_an_allowed_target_is_found() -> None:
    assert find_target("lmtrain.accounting.batches.Batch", key="batch") is Batch


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "torch.load",
        "subprocess.run",
        "torch.hub.load",
        "builtins.eval",
        "lightning.fabric.utilities.cloud_io._load",
    ],
)
def test_a_target_outside_the_allow_list_is_refused_with_the_flag_that_allows_it(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not allowed.*--allow-target"):
        find_target(name, key="model")


def test_a_name_that_only_passes_on_foreign_code_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="only passes on"):
        find_target("lmtrain.models.gpt2.final", key="model")


def test_a_misspelt_class_names_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'Batch'"):
        find_target("lmtrain.accounting.batches.Btch", key="batch")


def test_a_misspelt_module_names_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'batches'"):
        find_target("lmtrain.accounting.bachs.Batch", key="batch")


def test_the_command_line_can_allow_more() -> None:
    name = f"{__name__}.mine"
    with pytest.raises(ConfigurationError, match="is not allowed"):
        find_target(name, key="batch")
    assert find_target(name, key="batch", allowed=[f"{__name__}."]) is mine
    with pytest.raises(ConfigurationError, match="is of another kind: model takes LanguageModel"):
        find_target(name, key="model", allowed=[f"{__name__}."])


def mine() -> Batch:
    return Batch(context_tokens=1, tokens_per_step=1)
