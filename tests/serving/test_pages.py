"""The chat page in a headless browser: what it shows, keeps, stops, and never runs."""

import pytest

from tests.browser import browser_page
from tests.serving.served import served


def test_its_files_come_with_a_policy_that_lets_nothing_else_run():
    with served() as client:
        for address in ("/", "/chat.js", "/chat.css"):
            answer = client.get(address)
            assert answer.status_code == 200
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert "http://" not in answer.text
            assert "https://" not in answer.text
            assert "innerHTML" not in answer.text


def say(page, text):
    page.run(f"document.getElementById('text').value = {text!r}; document.getElementById('form').requestSubmit()")


@pytest.mark.browser
def test_a_person_talks_stops_edits_retries_and_comes_back(tmp_path):
    said = "[...document.querySelectorAll('#turns .assistant .said')].map(e => e.textContent)"
    with served() as client, browser_page(tmp_path / "profile") as page:
        page.open(str(client.base_url), width=390, height=844, scheme="dark")
        page.wait_for("document.getElementById('model')?.textContent === 'small'")
        page.run(
            "document.getElementById('max_tokens').value = '8'; document.getElementById('temperature').value = '0'"
        )
        say(page, "<img src=x onerror='document.title=1'>")
        page.wait_for(f"{said}[0].length > 0 && document.getElementById('stop').hidden")
        first = page.run(f"{said}[0]")
        assert page.run("document.querySelectorAll('#turns img').length") == 0
        page.run("[...document.querySelectorAll('#turns button')].find(b => b.textContent === 'Retry').click()")
        page.wait_for(f"{said}[0] === {first!r} && document.getElementById('stop').hidden")  # greedy: the same again
        page.run("document.getElementById('max_tokens').value = ''")
        say(page, "Go on")
        page.wait_for(f"{said}[1].length > 2")
        page.run("document.getElementById('stop').click()")
        page.wait_for("document.getElementById('stop').hidden")
        assert page.run("document.documentElement.scrollWidth <= 390")
        page.save(tmp_path / "phone.png")
        page.open(str(client.base_url), width=1200, height=800)
        page.wait_for(f"{said}.length === 2")  # kept
        page.run("[...document.querySelectorAll('#turns button')].filter(b => b.textContent === 'Edit')[1].click()")
        assert page.run("document.getElementById('text').value") == "Go on"
        page.run("document.getElementById('new').click()")
        page.wait_for("document.querySelectorAll('#turns li').length === 0")
        assert page.run("document.querySelectorAll('#list div').length") == 2
        page.save(tmp_path / "desk.png")
        assert client.worker.num_running == 0
