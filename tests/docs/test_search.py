"""The search of the built documentation, in Chromium: pages that answer a question come first."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator

import pytest

from tests.support.browser import chromium
from tests.support.docs.examples import ROOT

SITE = ROOT / "site"


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if not (SITE / "search" / "search_index.json").exists():
        pytest.skip("the documentation is not built: make site")
    if chromium.executable() is None:
        pytest.skip(f"Chromium is not installed ({chromium.obstacle()})")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/index.html"
    server.shutdown()
    thread.join()
    server.server_close()


def test_questions_find_their_page_first(address: str) -> None:
    wanted = {
        "action chunk": "change-the-batch-format",
        "pad actions": "change-the-batch-format",
        "decision transformer": "huggingface",
    }
    found = {}
    with chromium.browser() as browser:
        for question in wanted:
            page = browser.new_page()
            page.goto(f"{address}?q={question.replace(' ', '+')}")
            first = page.locator("a.md-search-result__link").first
            first.wait_for(state="attached")
            found[question] = (first.get_attribute("href") or "").split("/")[-1].split(".html")[0]
            page.close()
    assert found == wanted
