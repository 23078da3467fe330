"""``make pdf``: the built site's articles as one file, printed by Chromium.

The pages are joined in reading order. Each id gets its page's name as a prefix, so that a link
leads where it led on the site. What is not in the file is linked to on the published site. It is
printed twice: the second time with page numbers in the contents.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from itertools import repeat
from pathlib import Path
from urllib.parse import quote, unquote, urljoin, urlsplit

import chromium
import yaml
from bs4 import BeautifulSoup, Tag
from pypdf import PdfReader

ROOT = Path(__file__).parents[2]
SITE = ROOT / "_build/html"
OUTPUT = ROOT / "_build/pdf/attention-step-by-step.pdf"
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
ID_LISTS = ["aria-labelledby", "aria-describedby", "headers", "for"]
LEFT_OUT = ".headerlink, .viewcode-link, .toctree-wrapper, nav, button, script"
SETTLED = """async () => {
    await MathJax.startup.promise;
    await document.fonts.ready;
    await Promise.all([...document.images].map(image => image.decode()));
    const count = selector => document.querySelectorAll(selector).length;
    return [count(".math"), count("mjx-container"), count("mjx-merror")];
}"""
FOOTER = """<div style="width: 100%; margin: 0 20mm; font: 8px sans-serif; color: #555;
    display: flex; justify-content: space-between">
    <span class="title"></span><span class="pageNumber"></span></div>"""
PRINT = {
    "format": "A4",
    "margin": {"top": "18mm", "bottom": "18mm", "left": "20mm", "right": "20mm"},
    "display_header_footer": True,
    "header_template": "<span></span>",
    "footer_template": FOOTER,
    "print_background": True,
    "tagged": True,
    "outline": True,
}


def reading_order() -> Iterator[tuple[str, list[str]]]:
    """Each part's caption and its pages, as addresses in the site."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    yield "", [address(toc["root"])]
    for part in toc["parts"]:
        yield part["caption"], [address(page["file"]) for page in part["chapters"]]


def address(file: str) -> str:
    return f"{file.removesuffix('.ipynb')}.html"


def parse(page: str) -> BeautifulSoup:
    return BeautifulSoup((SITE / page).read_text("utf-8"), "html.parser")


def anchor(page: str, fragment: str = "") -> str:
    name = page.removesuffix(".html").replace("/", "-")
    return f"{name}--{fragment}" if fragment else name


def link(page: str, url: str, pages: set[str]) -> str:
    """Where a link on a page leads in the file."""
    if urlsplit(url).scheme:
        return url
    target = urljoin(page, url)
    path, fragment = unquote(urlsplit(target).path), unquote(urlsplit(target).fragment)
    if path in pages:
        return f"#{quote(anchor(path, fragment))}"
    return urljoin(CONFIG["html"]["baseurl"], target)


def read_article(page: str, pages: set[str]) -> Tag:
    article = parse(page).select_one("article.bd-article")
    article.name, article["id"] = "section", anchor(page)
    for tag in article.select(LEFT_OUT):
        tag.decompose()
    for tag in article.select("details"):
        tag["open"] = ""
    for tag in article.select("img[loading]"):
        del tag["loading"]  # printing waits for every picture
    for tag in article.select("#exercise-content, #solution-content"):
        del tag["id"]  # each exercise has it
    for tag in article.select("[id]"):
        tag["id"] = anchor(page, tag["id"])
    for name in ID_LISTS:
        for tag in article.select(f"[{name}]"):
            tag[name] = " ".join(anchor(page, one) for one in str(tag[name]).split())
    for tag in article.select("a[href]"):
        tag["href"] = link(page, tag["href"], pages)
    for tag in article.select("[src]:not([src^='data:'])"):
        tag["src"] = from_output(urljoin(page, tag["src"]))
    return article


def from_output(path: str) -> str:
    return quote(os.path.relpath(SITE / unquote(urlsplit(path).path), OUTPUT.parent))


def entry(section: Tag, numbers: Mapping[str, int]) -> str:
    heading = section.find(["h1", "h2"]).decode_contents()
    number = numbers.get(section["id"], 999)
    return f'<a href="#{quote(section["id"])}"><span>{heading}</span> {number}</a>'


def contents(caption: str, articles: list[Tag], numbers: Mapping[str, int]) -> str:
    """A part of the table of contents: its pages, and the sections of those with a story."""
    lines = [f"<h2>{caption}</h2>" if caption else "", "<ul>"]
    for article in articles:
        lines.append(f"<li>{entry(article, numbers)}")
        sections = article.select("section section:has(> h2)") if article.select(".cell") else []
        items = [f"<li>{entry(section, numbers)}</li>" for section in sections]
        lines.append(f"<ul>{''.join(items)}</ul></li>" if items else "</li>")
    return "\n".join([*lines, "</ul>"])


def head(sample: str) -> str:
    """The style sheets and MathJax of a page with formulas, and how the book is printed."""
    page = parse(sample)
    sheets = [
        f'<link rel="stylesheet" href="{from_output(urljoin(sample, tag["href"]))}">'
        for tag in page.select('link[rel~="stylesheet"]')
    ]
    scripts = []
    for tag in page.select("script"):
        if "mathjax/" in tag.get("src", ""):
            tag["src"] = from_output(urljoin(sample, tag["src"]))
        elif not tag.get_text().startswith("window.MathJax"):
            continue
        scripts.append(str(tag))
    style = Path(__file__).with_name("pdf.css").read_text("utf-8")
    return "\n".join([*sheets, f"<style>{style}</style>", *scripts])


def assemble(numbers: Mapping[str, int]) -> str:
    """The book as one page; in its contents, the numbers of the pages that sections begin on."""
    parts = list(reading_order())
    pages = {page for _, names in parts for page in names}
    articles = [[read_article(page, pages) for page in names] for _, names in parts]
    captions = [caption for caption, _ in parts]
    sample = next(
        page for page in sorted(pages) if 'class="math' in (SITE / page).read_text("utf-8")
    )
    toc = "\n".join(map(contents, captions, articles, repeat(numbers)))
    body = "\n".join(str(article) for part in articles for article in part)
    site = CONFIG["html"]["baseurl"]
    imprint = f"{CONFIG['author']} · version {CITATION['version']} · {CONFIG['copyright']}"
    return f"""<!DOCTYPE html>
<html lang="en" data-theme="light" data-mode="light">
<head><meta charset="utf-8"><title>{CONFIG["title"]}</title>{head(sample)}</head>
<body><main class="bd-content bd-article">
<section class="title-page"><p class="book-title">{CONFIG["title"]}</p>
<p>{imprint} · <a href="{site}">{site}</a></p>
<nav aria-label="Contents">{toc}</nav></section>
{body}
</main></body></html>"""


def print_pdf(source: Path) -> None:
    with chromium.launch() as browser:
        page = browser.new_page(color_scheme="light")
        page.set_default_timeout(600_000)  # a busy machine
        page.goto(source.as_uri())
        page.emulate_media(media="print")
        formulas, are_set, are_wrong = page.evaluate(SETTLED)
        if formulas != are_set or are_wrong:
            raise ValueError(f"{formulas} formulas, {are_set} are set, {are_wrong} with an error")
        page.pdf(path=OUTPUT, **PRINT)


def page_numbers() -> dict[str, int]:
    """On which page of the printed book each place that is linked begins."""
    reader = PdfReader(OUTPUT)
    return {
        name.removeprefix("/"): 1 + reader.get_destination_page_number(place)
        for name, place in reader.named_destinations.items()
    }


def main() -> None:
    if chromium.find() is None:
        sys.exit(f"error: {chromium.MISSING}")
    source = OUTPUT.with_suffix(".html")
    source.parent.mkdir(parents=True, exist_ok=True)
    numbers: Mapping[str, int] = {}
    for _ in range(2):  # only the printed book knows on which page a section begins
        source.write_text(assemble(numbers), "utf-8")
        print_pdf(source)
        numbers = page_numbers()


if __name__ == "__main__":
    main()
