"""Pipelines: commands one after another, each a stage of conf/pipeline/*.yaml.

`stages` reads a pipeline and gives each stage its command, `run` runs the stages and resumes a half-done pipeline, and
`plan` checks and plans stages whose base does not exist yet.
"""
