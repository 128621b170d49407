import contextlib
import http.client
import json
import shlex
import socket
import struct
import threading

import pytest

from lmtrain.cli.commands import plan_web
from lmtrain.cli.commands.plan import plan
from lmtrain.cli.commands.plan_web import HOST, answer, listen, settings_of
from lmtrain.errors import ConfigurationError
from tests.browser import browser_page

RUN = ["model=llama_3_8b", "cluster=h100_8x", "precision=bf16_mixed", "strategy=fsdp", "budget.tokens=160B"]
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
FLEET = ["fleet.device=NVIDIA H100 80GB HBM3", "fleet.num_devices=32", "fleet.days=14", "fleet.mfu=0.5"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@contextlib.contextmanager
def served(*start):
    server = listen(0, list(start))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def get(port, path, host=None, method="GET"):
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    connection.request(method, path, headers={"Host": host or f"{HOST}:{port}"})
    response = connection.getresponse()
    return response.status, response.read().decode()


@pytest.mark.parametrize("words", [RUN, FLEET])
def test_an_answer_is_what_the_command_prints(words, capsys):
    plan([*words, "--json"])
    printed = json.loads(capsys.readouterr().out)
    found = answer(words)
    assert found.get("plan", found.get("fleet")) == printed
    assert command_words(found["command"]) == words
    assert found.get("train") == (shlex.join(["lmtrain", "train", *words]) if "plan" in found else None)
    json.dumps(found)


def test_a_refusal_is_the_line_of_the_command():
    assert "unknown option" in answer(["model=llama_9b"])["error"]
    assert "at most 1" in answer([*FLEET[:3], "fleet.mfu=1.5"])["error"]


@pytest.mark.parametrize(
    "word", ["run.cache=/tmp/x", "model._target_=os.system", "hydra.run.dir=x", "--json", "model=a/../b", "budget"]
)
def test_what_is_no_setting_of_a_plan_is_not_asked(word):
    assert "the page has settings of model, precision, " in answer([word])["error"]
    with pytest.raises(ConfigurationError, match="the page has settings of"):
        settings_of([word])


def post(port, content, kind="application/json", host=None):
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    headers = {"Host": host or f"{HOST}:{port}", "Content-Type": kind}
    connection.request("POST", "/config", body=content, headers=headers)
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_a_pasted_config_is_planned_as_its_file_is(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    rest = ["cluster=h100_8x", "strategy=fsdp", "batch.context_tokens=32", "batch.tokens_per_step=1024"]
    with served() as port:
        assert post(port, "{}", kind="text/plain")[0] == 415, "which a page of another site may send"
        assert post(port, "{}", host=f"evil.example:{port}")[0] == 403
        assert post(port, "{" * 2**21)[0] == 413
        assert "config.json" in json.loads(post(port, "[1")[1])["error"]
        name = json.loads(post(port, json.dumps(LLAMA))[1])["model"]
    plan(["--hf", "config.json", *rest, "--json"])
    assert answer([f"model={name}", *rest])["plan"] == json.loads(capsys.readouterr().out)
    assert "got pasted_of_nobody" in answer(["model=pasted_of_nobody"])["error"]


def test_another_site_s_name_for_this_machine_gets_nothing():
    with served() as port:
        assert get(port, "/choices")[0] == 200
        assert get(port, "/choices", host=f"evil.example:{port}")[0] == 403
        assert get(port, "/page.js", host=f"evil.example:{port}", method="HEAD")[0] == 403
        assert get(port, "/../plan_web.py")[0] == 404


def test_a_client_that_leaves_prints_nothing(capfd):
    with served() as port:
        for _ in range(5):
            left = socket.create_connection(("127.0.0.1", port))
            left.sendall(f"GET / HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
            left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset at once
            left.close()
        assert get(port, "/choices")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_the_page_needs_nothing_from_elsewhere():
    with served() as port:
        for file in plan_web.FILES.iterdir():
            status, text = get(port, f"/{file.name}")
            assert status == 200
            assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


ANSWERED = "document.querySelector('#run')?.dataset.answered"


@pytest.mark.browser
def test_the_page_shows_what_the_command_prints(tmp_path):
    with served(*RUN[:1], "budget.tokens=160B") as port, browser_page(tmp_path / "browser") as page:
        page.open(f"http://{HOST}:{port}/")
        command = page.wait_for(ANSWERED)
        found = answer(command_words(command))["plan"]
        shown = page.run("document.querySelector('#run .tiles').innerText")
        assert f"{found['time']['days']:.3g} days" in shown
        assert f"{found['parameters']['total'] / 1e9:.3g}B" in shown
        assert f"{found['memory']['per_device_bytes']['total'] / 1e9:.3g} GB" in shown
        drawn = page.run("[...document.querySelectorAll('#run [data-chart]')].map(each => each.children.length)")
        assert len(drawn) == 3
        assert all(drawn)
        assert page.run("document.querySelector('#run .state').innerText") == "It fits and finishes."
        page.run(
            "Object.defineProperty(navigator, 'clipboard', {value: {writeText: (text) => { window.copied = text; }}})"
        )
        for verb, button in zip(("plan", "train"), ("first", "last"), strict=True):
            page.run(f"document.querySelector('#run .command:{button}-child button').click()")
            assert page.run("copied") == shlex.join(["lmtrain", verb, *command_words(command)])
        page.run(
            f"const field = document.querySelector('[name=config]'); field.value = {json.dumps(json.dumps(LLAMA))};"
            "field.dispatchEvent(new Event('change', {bubbles: true}))"
        )
        page.wait_for(f"{ANSWERED}.includes('model.path=.cache/plan/pasted_')")
        assert "fits" in page.run("document.querySelector('#run .state').innerText")
        page.run("document.querySelector('#run [data-chart=parameters]').replaceChildren()")
        displays = "[...document.querySelectorAll('#run article')].map(each => getComputedStyle(each).display)"
        assert page.run(displays).count("none") == 1, "a card with nothing in it is not shown"


@pytest.mark.browser
def test_a_fleet_is_solved_for_the_term_that_is_asked(tmp_path):
    with served() as port, browser_page(tmp_path / "browser") as page:
        page.open(f"http://{HOST}:{port}/#fleet")
        page.wait_for("document.querySelector('#fleet')?.dataset.answered")
        found = "[...document.querySelectorAll('#fleet .found span')].map(each => each.innerText).join()"
        assert page.run(found) == "parameters,tokens, 20 a parameter,cost,FLOPs, 6 x parameters x tokens"
        page.run(
            "const find = document.querySelector('#fleet [name=find]'); find.value = 'days';"
            "find.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        page.wait_for(f"{found} === 'time,cost'")
        page.run(
            "for (const [name, value] of [['work', 'FLOPs'], ['find', 'cost']]) {"
            "const control = document.querySelector(`#fleet [name=${name}]`); control.value = value;"
            "control.dispatchEvent(new Event('input', {bubbles: true})) }"
        )
        page.wait_for(f"{found} === 'parameters,tokens, 20 a parameter,device hours,cost'")
        words = command_words(page.run("document.querySelector('#fleet').dataset.answered"))
        assert {"fleet.flops=1e+23", "fleet.mfu=0.4", "precision=bf16_mixed"} <= set(words)
        assert not [word for word in words if "devices" in word or "days" in word]


def command_words(command):
    return shlex.split(command)[2:]
