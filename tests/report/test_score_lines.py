from lmtrain.evaluation.answer_scores import AnswerScore
from lmtrain.evaluation.bits_per_byte import BitsPerByte
from lmtrain.evaluation.core.score import CoreScore, TaskScore
from lmtrain.report.score_lines import answers_head, answers_line, bits_line, core_line, core_notes, task_line


def test_a_line_of_answers_holds_a_guess_beside_the_score():
    score = AnswerScore(kind="first_or_last", num_right=3, num_ended=4, num_items=4, num_commonest=1)
    assert answers_line(score).split() == ["first_or_last", "75.0%", "+-", "21.7%", "25.0%", "100.0%", "of", "4"]
    assert max(len(answers_head()), len(answers_line(score))) <= 80


def test_lines_hold_the_score_its_noise_and_80_columns():
    total = BitsPerByte(nats=693.147, num_bytes=1_000_000_000, num_tokens=500)
    assert bits_line("a.txt", total, 0.01).splitlines()[0] == "a.txt"
    assert " +- 0.0100 bits per byte   1.3863 nats a token" in bits_line("a.txt", total, 0.01)
    assert "+-" not in bits_line("a.txt", total, None)
    words = bits_line("test split of d", total, None, of_turns=2_000_000_000).splitlines()[2]
    assert words == "  the assistant's words, 1,000,000,000 of 2,000,000,000 bytes"
    task = TaskScore(label="bigbench_language_identification", num_right=3, num_items=10_000, baseline=0.091)
    score = CoreScore((task,) * 22)
    lines = [*bits_line("a.txt", total, 0.01).splitlines(), task_line(task), core_line(score), *core_notes(score)]
    assert max(map(len, lines)) <= 80
    assert task_line(task).split() == [task.label, "-0.0998", "+-", "0.0002", "accuracy", "0.0%", "of", "10,000"]
    assert core_line(score).split()[-3:] == ["-0.0998", "+-", "0.0000"]
    assert len(core_notes(CoreScore((task,)))) == len(core_notes(score)) + 1  # these are not CORE's 22
