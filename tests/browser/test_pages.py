"""Every page in a real browser: phone and desktop, light and dark."""

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
SITE = ROOT / "_build/html"
PAGES = sorted(
    str(page.relative_to(SITE))
    for page in SITE.rglob("*.html")
    if not page.is_relative_to(SITE / "_static") and page != SITE / "index.html"
)
CHAPTERS = [page for page in PAGES if page.startswith("book/chapters/")]
CHATTER = {"debug", "info", "log"}  # the theme says what it did


def open_page(browser: Browser, **options: object) -> Page:
    page = browser.new_page(**options)
    page.set_default_timeout(120_000)  # a busy machine
    return page


def watch(page: Page, home: str) -> list[str]:
    """Collect whatever a page should not do."""
    seen: list[str] = []
    page.on(
        "console",
        lambda message: message.type in CHATTER or seen.append(f"console: {message.text}"),
    )
    page.on("pageerror", lambda error: seen.append(f"error: {error}"))
    page.on("requestfailed", lambda request: seen.append(f"failed: {request.url}"))
    page.on(
        "response", lambda reply: reply.status < 400 or seen.append(f"{reply.status}: {reply.url}")
    )
    page.on(
        "request",
        lambda request: request.url.startswith((home, "data:")) or seen.append(request.url),
    )
    return seen


def settle(page: Page) -> None:
    """Wait until everything is loaded and each formula is set."""
    page.wait_for_load_state("networkidle")
    count = "document.querySelectorAll('{}').length"
    page.wait_for_function(f"{count.format('.math')} == {count.format('mjx-container')}")


@pytest.fixture(params=["address", "file"])
def home(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("address") if request.param == "address" else f"{SITE.as_uri()}/"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("path", PAGES)
def test_page(browser: Browser, address: str, path: str, width: int, scheme: str) -> None:
    page = open_page(browser, viewport={"width": width, "height": 900}, color_scheme=scheme)
    seen = watch(page, address)
    sizes: list[int] = []
    page.on("response", lambda reply: sizes.append(int(reply.headers.get("content-length", 0))))
    page.goto(address + path)
    settle(page)

    shot = (
        ROOT
        / "_build/screenshots"
        / f"{path.removesuffix('.html').replace('/', '-')}-{width}-{scheme}.png"
    )
    page.screenshot(path=shot, full_page=True)
    assert seen == []
    assert sum(sizes) < (2.2e6 if page.query_selector(".math") else 1.0e6)
    assert page.query_selector("mjx-merror") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    report = Axe().run(page)
    assert report.violations_count == 0, report.generate_report()
    page.close()


@pytest.mark.parametrize("path", CHAPTERS)
def test_chapter_from_disk(browser: Browser, path: str) -> None:
    page = open_page(browser)
    seen = watch(page, SITE.as_uri())
    page.goto(f"{SITE.as_uri()}/{path}")
    settle(page)
    assert page.query_selector("mjx-container")
    assert seen == []
    page.close()


def test_search(browser: Browser, home: str) -> None:
    page = open_page(browser)
    page.goto(f"{home}search.html?q=mask")
    page.wait_for_selector("#search-results li a")
    page.close()


@pytest.mark.parametrize("path", CHAPTERS)
def test_solutions_open_by_keyboard(browser: Browser, address: str, path: str) -> None:
    page = open_page(browser)
    page.goto(address + path)
    for solution in page.query_selector_all(".solution.dropdown, details"):
        solution.query_selector("button, summary").focus()
        before = solution.bounding_box()["height"]
        page.keyboard.press("Enter")
        page.wait_for_timeout(500)
        assert solution.bounding_box()["height"] > before
    page.close()
