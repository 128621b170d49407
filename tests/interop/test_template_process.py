from lmtrain.interop.template_process import MAX_CHARACTERS, answer


def test_templates_have_what_transformers_gives_them():
    template = "{% for a in all %}{% if a == 'c' %}{% break %}{% endif %}{{ a | tojson }}{% endfor %}\n"
    assert answer(template, {"all": ["<a>&", "c", "d"]}) == {"text": '"<a>&"'}


def test_what_cannot_be_written_is_told():
    assert answer("{{ raise_exception('no system turn') }}", {}) == {"problem": "no system turn"}
    assert "unsafe" in answer("{{ ''.__class__.__mro__ }}", {})["problem"]
    endless = "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}"
    assert answer(endless, {}) == {"problem": f"a text of more than {MAX_CHARACTERS} characters"}
