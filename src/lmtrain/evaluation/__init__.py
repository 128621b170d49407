"""Scores of a model: bits per byte, CORE, chat tasks, questions with one right answer, tasks of lm-eval."""
