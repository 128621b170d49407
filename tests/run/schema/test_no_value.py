from lmtrain.run.schema.no_value import no_value


def test_a_required_setting_is_named_with_a_word_that_a_shell_takes() -> None:
    assert str(no_value("source.paths")).endswith("command line: 'source.paths=[my/notes]'")
    assert str(no_value("source.paths", of_pairs=True)).endswith("command line: 'source.paths=[pairs.jsonl]'")
