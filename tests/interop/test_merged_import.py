import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.interop.merged_import import import_merged
from lmtrain.interop.peft_import import open_peft
from lmtrain.run.stored_runs.exported_models import model_to_export
from tests.interop.hugging_face import ours, tokens
from tests.interop.test_peft_import import made_by_peft

__all__ = ["made_by_peft"]


def test_a_merged_folder_computes_what_peft_does_and_is_never_overwritten(made) -> None:
    folder, logits = made
    base, adapter = model_to_export(folder / "in"), open_peft(folder / "adapter")
    assert import_merged(base, adapter, folder / "merged") == 4
    with torch.no_grad():
        torch.testing.assert_close(ours(folder / "merged")(tokens()), logits, atol=1e-4, rtol=1e-4)  # fp32
    assert model_to_export(folder / "merged").tokenizer is not None
    before, after = (folder / name / "original/config.json" for name in ("in", "merged"))
    assert after.read_bytes() == before.read_bytes(), "the ends of a text may stand there alone"
    with pytest.raises(ConfigurationError, match="is there already"):
        import_merged(base, adapter, folder / "merged")
