"""The EPUB: formulas as MathML, because readers run no scripts, a cover, a complete manifest."""

import importlib.util
import re
from base64 import b64encode
from html import escape, unescape
from itertools import chain
from pathlib import Path

import chromium
import yaml
from docutils import nodes
from playwright.sync_api import Browser
from sphinx.application import Sphinx
from sphinx.builders.epub3 import Epub3Builder
from sphinx.errors import ExtensionError

COVER = "_static/cover.png"
PICTURE = "book/_static/alignments.png"
# As sphinx.ext.mathjax writes it: a tag, perhaps a number, then \(…\) or \[…\].
FORMULA = re.compile(r'(<(span|div) class="math [^\\]*)\\([(\[])(.*?)\\[)\]](?=</\2>)', re.DOTALL)
SCRIPT = re.compile("<script.*?</script>", re.DOTALL)
MATHJAX = """() => { window.MathJax = {
    startup: {typeset: false}, tex: {packages: {"[-]": ["noerrors", "noundefined"]}},
}; }"""
TO_MATHML = """async formulas => {
    await MathJax.startup.promise;
    return formulas.map(([tex, display]) => MathJax.tex2mml(tex, {display}));
}"""


class BookEpub(Epub3Builder):
    """Sphinx's builder, and what it leaves out."""

    html_tag = Epub3Builder.html_tag.replace(">", ' lang="en" xml:lang="en">')

    def init(self) -> None:
        if chromium.find() is None:
            raise ExtensionError(chromium.MISSING)
        citation = yaml.safe_load(Path(self.srcdir, "CITATION.cff").read_text("utf-8"))
        config = self.config
        config.version = citation["version"]
        config.epub_title = citation["title"]
        config.epub_description = citation["abstract"]
        config.epub_identifier = citation["url"]
        config.epub_contributor = config.epub_publisher = config.author
        config.epub_cover = (COVER, "epub-cover.html")
        super().init()

    def handle_finish(self) -> None:
        with chromium.launch() as browser:
            self.set_formulas(browser)
            self.draw_cover(browser)
        super().handle_finish()

    def set_formulas(self, browser: Browser) -> None:
        page = browser.new_page()
        page.evaluate(MATHJAX)
        package = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent
        page.add_script_tag(path=package / "static/mathjax/tex-chtml-full.js")
        for file in self.pages():
            start, *pieces = FORMULA.split(file.read_text("utf-8"))
            tags, _, kinds, formulas, rests = (pieces[group::5] for group in range(5))
            sources = [unescape(formula) for formula in formulas]
            displayed = [kind == "[" for kind in kinds]
            mathml = page.evaluate(TO_MATHML, list(zip(sources, displayed, strict=True)))
            results = map(with_source, mathml, sources)
            file.write_text(
                start + "".join(chain(*zip(tags, results, rests, strict=True))), "utf-8"
            )

    def draw_cover(self, browser: Browser) -> None:
        picture = b64encode(Path(self.srcdir, PICTURE).read_bytes()).decode()
        text = Path(__file__).with_name("cover.html").read_text("utf-8")
        for name, value in {
            "TITLE": escape(self.config.epub_title),
            "AUTHOR": escape(self.config.author),
            "PICTURE": picture,
        }.items():
            text = text.replace(name, value)
        page = browser.new_page(viewport={"width": 1200, "height": 1800})
        page.set_content(text)
        page.screenshot(path=Path(self.outdir, COVER))

    def build_content(self) -> None:
        """Name the cover, and the pages that hold MathML: readers rely on the manifest for both."""
        super().build_content()
        manifest = Path(self.outdir, "content.opf")
        text = manifest.read_text("utf-8")
        properties = {COVER: "cover-image"}
        for file in self.pages():
            if "<math" in file.read_text("utf-8"):
                properties[file.relative_to(self.outdir).as_posix()] = "mathml"
        for href, value in properties.items():
            text = text.replace(f'href="{href}"', f'href="{href}" properties="{value}"', 1)
        manifest.write_text(text, "utf-8")

    def pages(self) -> list[Path]:
        return sorted(Path(self.outdir).rglob(f"*{self.out_suffix}"))


def with_source(mathml: str, tex: str) -> str:
    """The formula, with its source for readers that cannot show it."""
    if "<merror" in mathml:
        raise ValueError(f"MathJax cannot set {tex}: {mathml}")
    return mathml.replace("<math", f'<math alttext="{escape(tex)}"', 1)


def fit_readers(
    app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document
) -> None:
    """Leave out scripts, and what extensions bring for buttons, some of it too late."""
    if app.builder.name == "epub":
        body = SCRIPT.sub("", context.get("body", ""))
        context["body"] = body.replace("<details open>", '<details open="open">')
        own = {"pygments.css", "epub.css", *(name for name, _ in app.config.epub_css_files)}
        sheets = context["css_files"]
        context["css_files"] = [sheet for sheet in sheets if Path(str(sheet.filename)).name in own]


def setup(app: Sphinx) -> dict[str, object]:
    app.add_builder(BookEpub, override=True)
    app.connect("html-page-context", fit_readers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
