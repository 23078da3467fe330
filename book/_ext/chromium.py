"""The one way to start Chromium: it prints the book, sets the EPUB's formulas, tests the pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

PROGRAMS = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
]
OPTIONS = [  # containers run as root and have little shared memory; no request of the browser's own
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MISSING = "Chromium or Chrome is needed; on Debian or Ubuntu: apt-get install chromium"


def find() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextmanager
def launch() -> Iterator[Browser]:
    program = find()
    if program is None:
        raise FileNotFoundError(MISSING)
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program, args=OPTIONS)
