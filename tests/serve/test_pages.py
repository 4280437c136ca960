"""The page: its files and headers, its requests to the server, and with a browser the page itself."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

import lacli
from lacli.serve.app import PAGE, POLICY
from lacli.serve.run import access_for
from tests.serve.conftest import NAME, app_of, serving
from tests.serve.test_app import QUESTION
from tests.serve.test_fields import events

if TYPE_CHECKING:
    from playwright.sync_api import Page

KEY = "secret"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31m [a](javascript:x) **<b>bold</b>** `<i>`"


def test_each_file_is_sent_without_a_key_and_the_page_with_its_policy(model: lacli.Model) -> None:
    with serving(app_of(model, access_for(["0.0.0.0"], [KEY]))) as address:
        for path, name in (("/", "index.html"), ("/page/page.css", "page.css"), ("/page/page.js", "page.js")):
            with urlopen(address + path) as reply:
                assert reply.headers.get_content_type() in ("text/html", "text/css", "text/javascript")
                assert path != "/" or {header: reply.headers[header] for header in POLICY} == POLICY
                assert reply.read() == (PAGE / name).read_bytes()


def test_no_source_makes_html_or_code_of_a_text() -> None:
    scripts = "".join(path.read_text() for path in PAGE.glob("*.js"))
    assert not re.search(r"(inner|outer|Adjacent)HTML|document\.write|DOMParser|\beval\b|Function\(", scripts)
    page = (PAGE / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\bsrc=)", page)
    named = set(re.findall(r'(?:src|href)="([^"]*)"', page))
    assert named == {"data:,", "page/page.css", "page/page.js"}


def test_events_tell_of_their_steps_if_that_is_requested(address: str) -> None:
    url, body = f"{address}/v1/chat/completions", {"messages": QUESTION, "max_tokens": 40}
    assert not any("lacli" in event for event in events(url, body))
    told = events(url, {**body, "lacli": {"steps": True}})
    steps = [event["lacli"] for event in told if "lacli" in event]
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in told)
    assert "".join(piece["text"] for step in steps for piece in step["pieces"]) == text != ""
    assert sum(step["tokens"] for step in steps) == told[-1]["timings"]["predicted_n"]


def test_a_hostile_answer_is_text(address: str) -> None:
    if not CHROMIUM:
        pytest.skip("no Chromium is here: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not here: pip install playwright")
    errors: list[str] = []
    told: list[Mapping[str, Any]] = [
        {"lacli": {"pieces": [{"text": text, "origin": "suffix", "reasoning": False}], "tokens": 1, "rows": 2, "ms": 3}}
        for text in (HOSTILE[:20], HOSTILE[20:])
    ]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in told)
    with playwright.sync_playwright() as started:
        page: Page = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(dialog.message))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
        page.goto(address)
        page.get_by_text(NAME, exact=True).wait_for()
        page.get_by_label("Message", exact=True).fill("a")
        page.keyboard.press("Enter")
        answer = page.locator("#chat .answer")
        answer.get_by_text("javascript:x").wait_for()
        assert answer.text_content() == HOSTILE
        assert answer.locator("script, img, a, b, i").count() == 0
        assert answer.locator(".token.suffix").count() == 2
        assert page.locator("#legend li").all_inner_texts() == ["the text so far 2"]
    assert not errors
