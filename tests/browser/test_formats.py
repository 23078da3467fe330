"""The book as one PDF and as an EPUB, as `make pdf epub` has made them: complete and linked."""

import re
from collections import Counter
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit
from xml.etree import ElementTree
from zipfile import ZIP_STORED, ZipFile

import pdf
import pytest
import yaml
from bs4 import BeautifulSoup

ROOT = Path(__file__).parents[2]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
XHTML = "{http://www.w3.org/1999/xhtml}"
RAW = re.compile(r"\$\$|\$\\|\\\(|\\\[|\{(term|ref|cite\S*|doc)\}`|:::")

EPUB = ROOT / "_build/epub/attention-step-by-step.epub"


def chapters() -> list[str]:
    return [
        f"book/chapters/{path.stem}" for path in sorted((ROOT / "book/chapters").glob("*.ipynb"))
    ]


@pytest.fixture(scope="session")
def printed() -> tuple[bytes, BeautifulSoup]:
    """The PDF, and the page that it was printed from."""
    if not pdf.OUTPUT.exists():
        pytest.skip("there is no PDF: make pdf")
    source = pdf.OUTPUT.with_suffix(".html").read_text("utf-8")
    return pdf.OUTPUT.read_bytes(), BeautifulSoup(source, "html.parser")


def test_pdf_holds_the_whole_book(printed):
    content, source = printed
    assert len(re.findall(rb"/Type\s*/Page\b", content)) > 50
    titles = [heading.get_text() for heading in source.select("main > section h1")]
    assert len(titles) == sum(len(pages) for _, pages in pdf.reading_order())
    for title in titles:
        assert b"/Title (%b)" % title.encode("ascii") in content, title


def test_pdf_is_linked_in_itself(printed):
    _, source = printed
    ids = Counter(tag["id"] for tag in source.select("[id]"))
    assert [name for name, uses in ids.items() if uses > 1] == []
    urls = [tag["href"] for tag in source.select("a[href]")]
    assert [url for url in urls if url.startswith("#") and unquote(url[1:]) not in ids] == []
    assert [url for url in urls if not url.startswith(("#", "https://", "http://"))] == []


def test_pdf_contents_give_the_pages(printed):
    _, source = printed
    entries = source.select(".title-page nav a")
    listed = {unquote(tag["href"][1:]): int(tag.get_text().split()[-1]) for tag in entries}
    numbers = pdf.page_numbers()
    assert listed == {name: numbers[name] for name in listed}
    assert list(listed.values()) == sorted(listed.values())
    assert len(set(listed.values())) > 50


@pytest.fixture(scope="session")
def epub() -> ZipFile:
    if not EPUB.exists():
        pytest.skip("there is no EPUB: make epub")
    return ZipFile(EPUB)


@cache
def parse(epub: ZipFile, name: str) -> ElementTree.Element:
    return ElementTree.fromstring(epub.read(name))  # noqa: S314 (we wrote it)


def pages(epub: ZipFile) -> list[str]:
    return [name for name in epub.namelist() if name.endswith(".xhtml")]


def attributes(epub: ZipFile, page: str, name: str) -> list[tuple[str, str]]:
    return [(tag.tag, tag.attrib[name]) for tag in parse(epub, page).iter() if name in tag.attrib]


def test_epub_is_a_container_with_a_full_manifest(epub):
    assert epub.infolist()[0].filename == "mimetype"
    assert epub.infolist()[0].compress_type == ZIP_STORED
    (manifest,) = parse(epub, "content.opf").iter("{http://www.idpf.org/2007/opf}manifest")
    listed = [unquote(item.attrib["href"]) for item in manifest]
    outside = {"mimetype", "META-INF/container.xml", "content.opf"}
    assert Counter(listed) == Counter(set(epub.namelist()) - outside)
    properties = {item.attrib["href"]: item.attrib.get("properties") for item in manifest}
    assert [name for name in properties if properties[name] == "cover-image"]
    for page in pages(epub):
        assert (properties[page] == "mathml") == (b"<math" in epub.read(page)), page


def test_epub_says_what_it_is(epub):
    package = parse(epub, "content.opf")
    fields = {tag.tag.split("}")[1]: tag.text for tag in package[0]}
    assert fields["title"] == CITATION["title"]
    assert fields["identifier"] == CITATION["url"]
    assert fields["description"] == CITATION["abstract"]
    assert "unknown" not in fields.values()
    assert parse(epub, "book/index.xhtml").attrib["lang"] == "en"


def test_epub_lists_the_chapters_in_order(epub):
    links = [url.removesuffix(".xhtml") for _, url in attributes(epub, "nav.xhtml", "href")]
    assert [link for link in links if link in chapters()] == chapters()


def test_epub_loads_nothing_and_runs_nothing(epub):
    for page in pages(epub):
        loaded = [url for _, url in attributes(epub, page, "src")]
        loaded += [url for tag, url in attributes(epub, page, "href") if tag == f"{XHTML}link"]
        assert [url for url in loaded if urlsplit(url).scheme] == [], page
        assert not list(parse(epub, page).iter(f"{XHTML}script")), page
    for sheet in [name for name in epub.namelist() if name.endswith(".css")]:
        assert not re.search(rb"(url\(|@import)\s*[\"']?(https?:)?//", epub.read(sheet)), sheet


def test_epub_links_resolve(epub):
    for page in pages(epub):
        for name in ("href", "src"):
            for _, url in attributes(epub, page, name):
                if urlsplit(url).scheme:
                    continue
                path, fragment = unquote(urlsplit(url).path), unquote(urlsplit(url).fragment)
                target = urljoin(page, path) if path else page
                assert target in epub.namelist(), (page, url)
                if fragment:
                    assert fragment in {id_ for _, id_ in attributes(epub, target, "id")}, (
                        page,
                        url,
                    )


def test_epub_sets_every_formula(epub):
    formulas = 0
    for page in pages(epub):
        for tag in parse(epub, page).iter():
            if "math" in tag.attrib.get("class", "").split():
                formulas += 1
                assert tag.find(".//{http://www.w3.org/1998/Math/MathML}math") is not None, page
        body = BeautifulSoup(epub.read(page), "html.parser").body
        for code in body.select("pre, code"):
            code.decompose()
        assert not RAW.search(body.get_text()), page
    assert formulas > 50
