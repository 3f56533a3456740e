"""The page at /, in a real browser: it chats, it keeps what was said, and nothing a model says can act."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from llmrs_cli.engine.types import FinishReason
from llmrs_cli.server.connections import http_server
from llmrs_cli.server.page import page
from llmrs_cli.server.run import listen
from llmrs_cli.text.tokenizer import Tokenizer
from tests.helpers.bench import Bench
from tests.helpers.byte_tokenizer import CHAT_TEMPLATE, IM_END, byte_id, byte_ids, byte_tokenizer_json
from tests.helpers.chromium import Page, browser
from tests.helpers.fake_engine import reply
from tests.helpers.ladder import TOP, Ladder, step_ids, write_ladder
from tests.helpers.served import Served, served

TOKENIZER = Tokenizer(byte_tokenizer_json())
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    " ![a](http://127.0.0.1:9/image.png)",
    " [b](javascript:alert(2))",
    "\n```py\n<script>alert(3)</script>\n```\n",
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose model writes markup, and goes on for ever if it is told x."""
    folder = tmp_path_factory.mktemp("hostile")
    loop = [byte_id(ord(letter)) for letter in "xyx"]
    table = {last: {following: TOP} for last, following in zip(loop, loop[1:], strict=False)}
    turn = r"assistant' + ('x' if messages[-1].content == 'x' else '\n')"
    template = CHAT_TEMPLATE.replace(r"assistant\n'", turn)
    model = write_ladder(
        folder / "model",
        Ladder(reply=(*HOSTILE, "<|im_end|>"), vocab=384, table=table, chat_template=template),
    )
    assert len(set(step_ids((*HOSTILE, "<|im_end|>")))) == len(HOSTILE) + 1
    with served(model, folder) as server:
        yield server


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(hostile: Served, chromium: Page) -> Page:
    """The page, open and connected, in a browser that remembers nothing."""
    chromium.size(1100, 750)
    visit(chromium, hostile.url + "/")
    chromium.run("localStorage.clear()")
    visit(chromium, hostile.url + "/")
    chromium.wait("document.querySelector('#model')?.textContent.startsWith('model')")
    chromium.requested.clear()
    return chromium


def visit(tab: Page, url: str) -> None:
    tab.open(url)
    tab.wait("document.readyState === 'complete'")


@contextmanager
def scripted(**settings: Any) -> Iterator[tuple[Bench, str]]:
    """A server in this process that says hello, and its address."""
    bench = Bench(reply((*byte_ids("hello"), IM_END), finish=FinishReason.STOP), **settings)
    with listen("127.0.0.1", 0) as listener:
        server = http_server(bench.app)
        running = Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        running.start()
        try:
            yield bench, f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            running.join()
            bench.service.close()


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    """The address of a server that wants a key."""
    with scripted(keys=(b"open-sesame",)) as (_, address):
        yield address


def say(tab: Page, text: str) -> None:
    tab.run("document.querySelector('#prompt').focus()")
    tab.write(text)
    tab.press("Enter", "\r")


def test_what_a_model_writes_is_text_and_does_nothing(tab: Page, hostile: Served, tmp_path: Path) -> None:
    say(tab, "hi")
    tab.wait("document.querySelector('.turn.assistant .figures')?.textContent.includes('tokens')")
    shown = tab.run("document.querySelector('.turn.assistant > .text').textContent")
    assert "<img src=x onerror=alert(1)> ![a](http://127.0.0.1:9/image.png) [b](javascript:alert(2))" in shown
    assert tab.run("document.querySelector('.turn.assistant pre').textContent") == "<script>alert(3)</script>"
    assert tab.run("document.querySelectorAll('.turn img, .turn a, .turn script').length") == 0
    assert tab.dialogs == 0
    asked = [url for url in tab.requested if not url.startswith("data:")]
    assert {url.split("/")[2] for url in asked} == {f"127.0.0.1:{hostile.port}"}
    tab.picture(tmp_path / "page.png")


def test_no_script_but_its_own_runs(tab: Page) -> None:
    tab.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">')")
    tab.run(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hacked = 1'}))"
    )
    tab.wait("document.querySelector('body > img').complete")
    assert tab.run("window.hacked === undefined")


def test_escape_stops_an_answer(tab: Page, hostile: Served) -> None:
    say(tab, "x")
    tab.wait("document.querySelector('.turn.assistant > .text')?.textContent.length > 4")
    assert tab.run("!document.querySelector('#stop').hidden")
    tab.press("Escape")
    tab.wait("document.querySelector('.turn.assistant .figures').textContent === 'stopped'")
    hostile.settle()


def test_conversations_stay_in_the_browser(tab: Page, hostile: Served) -> None:
    say(tab, "first words")
    tab.wait("document.querySelector('.turn.assistant .figures')?.textContent.includes('tokens')")
    tab.press("n", modifiers=1)
    assert tab.run("document.querySelectorAll('.turn').length") == 0
    tab.open(hostile.url + "/")
    tab.wait("document.querySelectorAll('.turn').length === 2")
    assert tab.run("document.querySelector('#list .open-it').textContent") == "first words"
    tab.run("document.querySelector('#list .drop-it').click()")
    assert tab.run("localStorage.getItem('talks')") == "[]"


def test_settings_reach_the_request(tab: Page) -> None:
    tab.run("document.querySelector('#settings').click()")
    tab.run("document.querySelector('#max_tokens').value = 2")
    say(tab, "hi")
    tab.wait("document.querySelector('.turn.assistant .figures')?.textContent.includes('cut')")
    assert tab.run("document.querySelector('.turn.assistant .figures').textContent").startswith("2 tokens")


def test_every_field_of_the_page_reaches_the_engine(chromium: Page) -> None:
    fields = {"temperature": 0.5, "top_p": 0.25, "max_tokens": 7, "seed": 11}
    with scripted() as (bench, address):
        visit(chromium, address)
        chromium.wait("document.querySelector('#model').textContent.startsWith('m,')")
        chromium.run("document.querySelector('#settings').click()")
        for name, value in {**fields, "system": "Be brief."}.items():
            chromium.run(f"document.querySelector('#{name}').value = {json.dumps(value)}")
        say(chromium, "hi")
        chromium.wait("document.querySelector('.turn.assistant > .text')?.textContent === 'hello'")
        (request,) = bench.engine.requests
    assert {name: getattr(request.params, name) for name in fields} == fields
    assert TOKENIZER.decode(request.prompt_ids) == "system\nBe brief.\nuser\nhi\nassistant\n"


@pytest.mark.parametrize("width", [1100, 400])
def test_the_message_box_stays_in_sight(tab: Page, width: int) -> None:
    tab.size(width, 600)
    for _ in range(3):
        say(tab, "hi")
        tab.wait("!document.querySelector('#send').hidden")
    tab.run("document.querySelector('#settings').click()")
    assert tab.run("document.querySelector('#talk').scrollHeight > 600")
    for name in ("#prompt", "#send", "#settings"):
        box = tab.run(f"document.querySelector('{name}').getBoundingClientRect().toJSON()")
        assert 0 <= box["top"] < box["bottom"] <= 600, name
        assert 0 <= box["left"] < box["right"] <= width, name
    assert tab.run("document.documentElement.scrollWidth") == width


def test_on_a_narrow_screen_conversations_are_behind_a_button(tab: Page) -> None:
    def shown() -> object:
        return tab.run("getComputedStyle(document.querySelector('aside')).display !== 'none'")

    assert shown()
    tab.size(400, 700)
    assert not shown()
    tab.run("document.querySelector('#menu').click()")
    assert shown()
    tab.press("Escape")
    assert not shown()


def test_a_key_is_asked_for_and_forgotten_with_the_visit(chromium: Page, locked: str) -> None:
    visit(chromium, locked)
    chromium.wait("document.querySelector('#lock').open")
    chromium.run("document.querySelector('#key').focus()")
    chromium.write("open-sesame")
    chromium.press("Enter", "\r")
    chromium.wait("document.querySelector('#model').textContent.startsWith('m,')")
    say(chromium, "hi")
    chromium.wait("document.querySelector('.turn.assistant > .text')?.textContent === 'hello'")
    assert chromium.run("sessionStorage.getItem('key')") == "open-sesame"
    assert "sesame" not in chromium.run("JSON.stringify(localStorage)")


def test_it_can_be_dark_and_light(tab: Page) -> None:
    def ground() -> object:
        return tab.run("getComputedStyle(document.body).backgroundColor")

    first = ground()
    tab.run("document.querySelector('#theme').click()")
    assert ground() != first


def test_the_policy_allows_one_script_and_one_style() -> None:
    data, policy = page()
    text = data.decode()
    assert len(re.findall(r"<script[ >]", text)) == len(re.findall(r"<style[ >]", text)) == 1
    assert " on" not in re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL).replace(" on this", "")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert name not in text


def test_the_page_needs_no_key_and_may_not_be_framed(hostile: Served) -> None:
    headers = hostile.get("/").headers
    assert headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
