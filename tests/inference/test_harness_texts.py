import dataclasses

import pytest

from lmtrain.inference.harness_texts import HarnessTexts
from lmtrain.interop.tokenizer_files import write_tokenizer
from lmtrain.run.stored_runs.loaded_models import model_to_run
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.interop.hugging_face import saved


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    saved("llama", folder, tokenizer=False)
    write_tokenizer(ByteLevelTokenizer(vocab_size=288, chat=True), folder, max_context_tokens=64)
    return model_to_run(folder, device="cpu")


def test_a_special_token_s_name_is_that_token_and_a_conversation_comes_back_to_its_ids(loaded):
    texts, specials = HarnessTexts(loaded), loaded.tokenizer.special_tokens
    assert texts.encode("a<|user_end|>b", begins=True) == [97, specials["<|user_end|>"], 98]
    text = texts.prompt([{"role": "user", "content": "Grüße"}])
    assert text == "<|end_of_text|><|user_start|>Grüße<|user_end|><|assistant_start|>"
    assert loaded.tokenizer.decode(texts.encode(text, begins=True)) == "Grüße"


def test_ids_put_before_a_text_are_there_once(loaded):
    first = loaded.first_id
    texts = HarnessTexts(dataclasses.replace(loaded, added_ids=(first,)))
    assert texts.encode("a", begins=True) == texts.encode("<|end_of_text|>a", begins=True) == [first, 97]
    assert texts.encode("a", begins=False) == [97]


def test_texts_are_written_in_their_order_and_end_before_a_stop(loaded):
    texts = HarnessTexts(loaded)
    settings = {"num_new_tokens": 12, "sampling": {"temperature": 0.0}}
    both = texts.write([[97], [98]], stops=[], **settings)
    assert both == [texts.write([[id_]], stops=[], **settings)[0] for id_ in (97, 98)]
    stop = both[0][3]
    assert texts.write([[97]], stops=[stop], **settings) == [both[0][: both[0].index(stop)]]
