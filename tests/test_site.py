"""The built site is complete in itself: nothing from other hosts, no dead link, light pages."""

import json
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from bs4 import BeautifulSoup

ROOT = Path(__file__).parents[1]
SITE = ROOT / "_build/html"
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
BASE = urlsplit(CONFIG["html"]["baseurl"]).path
PAGES = sorted(page for page in SITE.rglob("*.html") if SITE / "_static" not in page.parents)

pytestmark = pytest.mark.skipif(not PAGES, reason="the site is not built: make book")
each_page = pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(SITE))) for page in PAGES]
)


@cache
def parse(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text("utf-8"), "html.parser")


def loaded(page: Path) -> list[str]:
    """What a browser fetches to show the page."""
    html = parse(page)
    links = html.select('link[rel~="stylesheet"], link[rel~="icon"], link[rel~="preload"]')
    return [tag["href"] for tag in links] + [tag["src"] for tag in html.select("[src]")]


def find(page: Path, url: str) -> Path:
    """The file that a link on a page leads to."""
    path = unquote(urlsplit(url).path)
    if path.startswith(BASE):  # the 404 page is shown at any address
        return SITE / path.removeprefix(BASE)
    return (page.parent / path).resolve() if path else page


def is_external(url: str) -> bool:
    return bool(urlsplit(url).scheme or urlsplit(url).netloc) and not url.startswith("data:")


@each_page
def test_nothing_is_loaded_from_another_host(page):
    assert [url for url in loaded(page) if is_external(url)] == []


def test_style_sheets_load_nothing_from_another_host():
    for sheet in SITE.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text("utf-8")), (
            sheet
        )


@each_page
def test_links_resolve(page):
    urls = [tag["href"] for tag in parse(page).select("a[href], link[href]")] + loaded(page)
    for url in urls:
        if is_external(url) or url.startswith("data:"):
            continue
        target, anchor = find(page, url), unquote(urlsplit(url).fragment)
        target = target / "index.html" if target.is_dir() else target
        assert target.is_file(), url
        if anchor and target.suffix == ".html":
            assert parse(target).find(id=anchor), url


@each_page
def test_pages_say_nothing_of_the_machine_that_built_them(page):
    assert str(ROOT) not in page.read_text("utf-8")


@each_page
def test_images_are_described(page):
    for image in parse(page).select("article img"):
        assert len(image.get("alt", "")) > 3, image
        assert not image["alt"].endswith((".png", ".svg")), image


@each_page
def test_pictures_do_not_move_the_text_and_come_when_needed(page):
    for image in parse(page).select('article img[src*="_images/"]'):
        width, height = int(image["width"]), int(image["height"])
        assert min(width, height) > 100, image
        assert image.get("loading") == (None if page.name == "index.html" else "lazy"), image


@each_page
def test_no_markup_is_left_raw(page):
    article = BeautifulSoup(str(parse(page).select_one("article") or ""), "html.parser")
    for tag in article.select("pre, code, script, style, .math"):
        tag.decompose()
    assert not re.search(r"\$\$|\$\\|\\\(|\\\[|\{(term|ref|cite\S*|doc)\}`|:::", article.get_text())


@each_page
def test_pages_are_light(page):
    """At most 1 MB, and 2.2 with formulas; the rest is for fonts (0.16) and MathJax's parts.

    The browser tests weigh what is really loaded.
    """
    files = {find(page, url) for url in loaded(page) if not url.startswith("data:")}
    size = (page.stat().st_size + sum(file.stat().st_size for file in files)) / 1e6
    assert size < (1.3 if parse(page).select_one(".math") else 0.84)


def test_search_finds_the_words_of_the_book():
    index = (SITE / "searchindex.js").read_text("utf-8")
    terms = json.loads(index.removeprefix("Search.setIndex(").rstrip().rstrip(")"))["terms"]
    assert "mask" in terms


@pytest.mark.parametrize(
    "notebook", sorted((ROOT / "book").rglob("*.ipynb")), ids=lambda path: path.stem
)
def test_notebooks_can_be_opened_elsewhere(notebook):
    name = notebook.relative_to(ROOT)
    hrefs = {tag["href"] for tag in parse(SITE / name.with_suffix(".html")).select("a[href]")}
    repository, branch = CONFIG["repository"]["url"], CONFIG["repository"]["branch"]
    slug = urlsplit(repository).path
    assert f"https://colab.research.google.com/github{slug}/blob/{branch}/{name}" in hrefs
    assert any(href.startswith(f"https://mybinder.org/v2/gh{slug}/{branch}?") for href in hrefs)
    assert any(href.endswith(notebook.name) and not is_external(href) for href in hrefs)
