from lmtrain.storage.text_sizes import num_characters


def test_texts_count_at_every_depth_and_nothing_else_does():
    assert num_characters(["ab", None, 7, ["c", {"role": "user", "content": ["d"]}]]) == 8
