from lmtrain.evaluation.chat_tasks.chat_items import LetterItem


def test_each_choice_stands_before_its_letter():
    item = LetterItem("Which?", ["one", "two"], 1)
    assert (item.letters, item.text) == ("AB", "Which?\n\none = A\ntwo = B\n\nAnswer with one letter.")
