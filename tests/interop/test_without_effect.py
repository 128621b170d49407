from lmtrain.interop.without_effect import WITHOUT_EFFECT
from lmtrain.run.schema.source_signatures import setting_names


def test_each_is_a_setting_of_a_model() -> None:
    assert setting_names("lmtrain.models.llama.Llama") | setting_names("lmtrain.models.gpt2.GPT2") >= WITHOUT_EFFECT
