"""The word playground: its models, exported when the site is built, and the scripts of its page.

``{try}`word``` marks a word that the page turns into a button.
"""

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from companion.g2p.export import export_model

PAGE = "book/playground"
MODELS = ["additive", "multi_head"]


def export_models(app: Sphinx) -> None:
    """Write the weights from the checkpoints, so that the page cannot differ from the package."""
    if app.builder.name == "html":  # the others have no scripts
        staging = Path(app.doctreedir, "playground")
        for name in MODELS:
            export_model(name, staging / "playground")
        app.config.html_static_path.append(str(staging))


def add_scripts(
    app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document
) -> None:
    if pagename == PAGE:
        app.add_css_file("playground/playground.css")
        app.add_js_file("playground/model.js", loading_method="defer")
        app.add_js_file("playground/page.js", loading_method="defer")


def mark_word(name, rawtext, text, lineno, inliner, options=None, content=()):
    return [nodes.inline(rawtext, text, classes=["try"])], []


def setup(app: Sphinx) -> dict[str, object]:
    app.connect("builder-inited", export_models)
    app.connect("html-page-context", add_scripts, priority=400)  # before site_fixes' copy
    app.add_role("try", mark_word)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
