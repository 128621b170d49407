from lmtrain.report.visible_text import visible


def test_control_bytes_are_replaced_and_spaces_stay():
    assert visible("a\x1b[31m\n\tb\u3000c") == "a\N{REPLACEMENT CHARACTER}[31m\n\tb\u3000c"
