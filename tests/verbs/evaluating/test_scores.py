from lmtrain.verbs.evaluating.scores import text_keys


def test_each_text_has_a_metric_of_its_own_and_none_that_of_a_split() -> None:
    assert text_keys(["a/notes.txt", "-", "test.txt"]) == ["notes", "-", "test.txt"]
    assert text_keys(["a/x.txt", "b/x.txt", "x.txt", "/c/x.txt", "b/x.txt"]) == [
        *("x", "x.txt", "x.txt_5", "c_x.txt", "b_x.txt")
    ]
