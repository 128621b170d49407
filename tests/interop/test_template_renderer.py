import gc

import pytest

from lmtrain.interop.template_renderer import TemplateProblem, TemplateRenderer

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


def test_its_process_ends_with_it():
    renderer = TemplateRenderer()
    assert renderer.render("x", {}) == "x"
    process = renderer._process
    assert process is not None
    del renderer
    gc.collect()
    assert process.returncode is not None
