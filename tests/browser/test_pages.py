"""Every page in a real browser: phone and desktop, light and dark."""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
SITE = ROOT / "_build/html"
SHOTS = ROOT / "_build/screenshots"
LISTINGS = "_modules/companion/"  # the package's source, all pages of one kind: one stands for all
PAGES = sorted(
    str(page.relative_to(SITE))
    for page in SITE.rglob("*.html")
    if page != SITE / "index.html" and not page.is_relative_to(SITE / "_static")
)
PAGES = [page for page in PAGES if not page.startswith(LISTINGS) or page.endswith("/masks.html")]
CHAPTERS = [page for page in PAGES if page.startswith("book/chapters/")]
LOADED_ON_TOP = {"book/playground.html": 4.3e6}  # the weights of two models
CHATTER = {"debug", "info", "log"}  # the theme says what it did

OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    pages: list[Page] = []

    def open_page(**options: object) -> Page:
        pages.append(browser.new_page(**options))
        pages[-1].set_default_timeout(120_000)  # a busy machine
        return pages[-1]

    yield open_page
    for page in pages:
        page.close()


def watch(page: Page, home: str) -> list[str]:
    """Collect whatever a page should not do."""
    seen: list[str] = []

    def note(is_wrong: bool, what: object) -> None:
        if is_wrong:
            seen.append(str(what))

    page.on("console", lambda message: note(message.type not in CHATTER, message.text))
    page.on("pageerror", lambda error: note(True, error))
    page.on("request", lambda request: note(is_external(request.url, home), request.url))
    page.on("requestfailed", lambda request: note(True, request.url))
    page.on("response", lambda reply: note(reply.status >= 400, reply.url))
    return seen


def is_external(url: str, home: str) -> bool:
    return not url.startswith((home, "data:"))


def settle(page: Page) -> None:
    """Wait until everything is loaded, also what is far down, and each formula is set."""
    page.evaluate("for (const image of document.images) image.loading = 'eager'")
    page.wait_for_load_state("networkidle")
    page.wait_for_function("[...document.images].every(image => image.complete)")
    count = "document.querySelectorAll('{}').length"
    page.wait_for_function(f"{count.format('.math')} == {count.format('mjx-container')}")


@pytest.fixture(params=["address", "file"])
def home(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("address") if request.param == "address" else f"{SITE.as_uri()}/"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("path", PAGES)
def test_page(open_page: OpenPage, address: str, path: str, width: int, scheme: str) -> None:
    page = open_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    seen = watch(page, address)
    sizes: list[int] = []
    page.on("response", lambda reply: sizes.append(int(reply.headers.get("content-length", 0))))
    page.goto(address + path)
    settle(page)

    name = path.removesuffix(".html").replace("/", "-")
    page.screenshot(path=SHOTS / f"{name}-{width}-{scheme}.png", full_page=True)
    assert seen == []
    limit = 2.2e6 if page.query_selector(".math") else 1.0e6
    assert sum(sizes) < limit + LOADED_ON_TOP.get(path, 0)
    assert page.query_selector("mjx-merror") is None
    assert page.query_selector(".explore > details[open]") is None  # its script has run
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    report = Axe().run(page)
    assert report.violations_count == 0, report.generate_report()


@pytest.mark.parametrize("path", CHAPTERS)
def test_wide_screens_do_not_scroll_sideways(open_page: OpenPage, address: str, path: str) -> None:
    page = open_page(viewport={"width": 1920, "height": 1080})
    page.goto(address + path)
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1920


@pytest.mark.parametrize("path", CHAPTERS)
def test_chapter_from_disk(open_page: OpenPage, path: str) -> None:
    page = open_page()
    seen = watch(page, SITE.as_uri())
    page.goto(f"{SITE.as_uri()}/{path}")
    settle(page)
    assert page.query_selector("mjx-container")
    assert seen == []


@pytest.mark.parametrize("query", ["mask", "√d_k", "NaN"])
def test_search(open_page: OpenPage, home: str, query: str) -> None:
    page = open_page()
    page.goto(f"{home}search.html?q={quote(query)}")
    page.wait_for_selector("#search-results li a")
    found = page.eval_on_selector_all("#search-results li a", "links => links.map(a => a.href)")
    assert any("/chapters/" in href for href in found)


def test_copy_buttons_copy(open_page: OpenPage, address: str) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    page.goto(address + CHAPTERS[0])
    cell = page.query_selector(".cell_input .highlight")
    cell.query_selector("button.copybtn").click()
    page.wait_for_selector("button.copybtn.success")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == cell.query_selector("pre").inner_text().strip()


@pytest.mark.parametrize("path", CHAPTERS)
def test_solutions_open_by_keyboard(open_page: OpenPage, address: str, path: str) -> None:
    page = open_page()
    page.goto(address + path)
    for solution in page.query_selector_all("article .dropdown, article details"):
        solution.query_selector("button, summary").focus()
        height = solution.bounding_box()["height"]
        page.keyboard.press("Enter")
        page.wait_for_timeout(500)
        assert solution.bounding_box()["height"] > height
