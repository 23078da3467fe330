"""A Chromium, and the site served from a sub-path as GitHub Pages does."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import chromium
import pytest
from playwright.sync_api import Browser

SITE = Path(__file__).parents[2] / "_build/html"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if chromium.find() is None:
        pytest.skip("no Chromium here: make test-browser installs it")
    if not SITE.exists():
        pytest.skip("the site is not built: make book")
    with chromium.launch() as browser:
        yield browser


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("server")
    (root / "attention").symlink_to(SITE)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/attention/"
        server.shutdown()
