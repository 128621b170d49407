from lmtrain.tokenizers.question_forms import choice_question, count_question


def test_choices_stand_before_their_letters() -> None:
    assert choice_question("2 + 2?", ["3", "4"]) == "2 + 2?\n\n3 = A\n4 = B\n\nAnswer with one letter."


def test_a_count_asks_for_a_number_in_its_form() -> None:
    assert count_question("r", "berry") == "How many r are in berry? Write the number after ####."
