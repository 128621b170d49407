"""Templates of strangers in a process with limits, written as transformers writes them."""

import pytest

from lmtrain.tokenizers.template_renderer import MAX_CHARACTERS, TemplateProblem, TemplateRenderer, answer

TOOL = {"name": "dé<f>", "parameters": {"b": [1, 2.5], "a": None}}
MESSAGES = [{"role": "user", "content": "Hi & <bye>"}, {"role": "assistant", "content": " Hello\n"}]


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}x",
        "{%- for m in messages -%}\n  {%- generation -%}\n {{ m.content | trim }} {%- endgeneration -%}\n{%- endfor %}",
        "{% set a = 1 %}{% generation %}{{ a }}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}",
        "{% for m in messages %}{% if loop.last %}{% generation %}{{ loop.index }}{% if m.content %}!{% endif %}"
        "{% endgeneration %}{% endif %}{% endfor %}",
        "{{ tool | tojson(indent=2) }}{{ tool | tojson(separators=(',', ':'), sort_keys=true) }}",
        "{{ tool | tojson(ensure_ascii=true) }}{{ tool | tojson(true, 1) }}{{ tojson }}",
        "{{ strftime_now('%Y-%m %% %Z%z') }}{% if strftime_now is defined %}{{ strftime_now('%B') }}{% endif %}",
    ],
)
def test_it_is_written_as_transformers_writes_it(template):
    from transformers.utils.chat_template_utils import render_jinja_template

    (theirs,), _ = render_jinja_template(conversations=[MESSAGES], chat_template=template, tool=TOOL)
    assert answer(template, {"messages": MESSAGES, "tool": TOOL}) == {"text": theirs}


def test_extensions_open_nothing():
    assert "unsafe" in answer("{% generation %}{{ ''.__class__.__mro__ }}{% endgeneration %}", {})["problem"]
    assert "unsafe" in answer("{{ strftime_now.__globals__.os }}", {})["problem"]
    assert "endgeneration" in answer("{% generation %}", {})["problem"]


def test_what_cannot_be_written_is_told():
    assert answer("{{ raise_exception('no system turn') }}", {}) == {"problem": "no system turn"}
    assert "unsafe" in answer("{{ ''.__class__.__mro__ }}", {})["problem"]
    endless = "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}"
    assert answer(endless, {}) == {"problem": f"a text of more than {MAX_CHARACTERS} characters"}


NESTED = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def test_what_takes_too_long_is_ended_and_the_next_text_is_written():
    renderer = TemplateRenderer(cpu_seconds=0.2)
    for template in (NESTED, "{{ 7 ** (10 ** 9) }}"):
        with pytest.raises(TemplateProblem, match=r"more than 0\.2 s of processor time"):
            renderer.render(template, {})
    assert renderer.render("{{ a }}", {"a": "\u00e4\ud800"}) == "\u00e4\ud800"


def test_what_grows_too_large_is_refused():
    renderer = TemplateRenderer()
    with pytest.raises(TemplateProblem, match="MemoryError"):
        renderer.render("{{ 'x' * 10 ** 10 }}", {})
    with pytest.raises(TemplateProblem, match="more than 16777216 characters"):
        renderer.render("{{ 'x' * 20000000 }}", {})
