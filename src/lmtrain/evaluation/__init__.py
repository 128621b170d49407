"""Scores of a model: bits per byte, CORE, questions with one right answer, tasks of lm-eval."""
