"""What the stock theme needs to be self-contained, accessible, and to know the site's address."""

import importlib.util
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from docutils import nodes
from PIL import Image
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

MATHJAX = [
    "startup.js",
    "core.js",
    "a11y/assistive-mml.js",
    "input/tex.js",
    "input/tex/extensions/*.js",
    "output/chtml.js",
    "output/chtml/fonts/tex.js",
    "output/chtml/fonts/woff-v2/*.woff",
]
PUBLIC_NAMES = {"Tensor": "torch.Tensor", "torch._C.Generator": "torch.Generator"}
FOR_ARTICLES = re.compile(r"clipboard|copybutton|togglebutton|design|mystnb|exercise|proof")
BODY_FIXES = {
    # Roles that ARIA does not allow where docutils puts them.
    ' role="doc-biblioentry"': "",
    '<div role="list" class="citation-list">': '<div class="citation-list">',
    # A signature's parameters, one a line, are no definition list.
    '<dl>\n<dd><em class="sig-param">': '<dl role="none">\n<dd><em class="sig-param">',
    '<dd><em class="sig-param">': '<div class="sig-line"><em class="sig-param">',
    "</em>,</dd>": "</em>,</div>",
    # The empty corner of a table is no heading.
    '<th class="head"><p></p></th>': "<td></td>",
    "<th></th>": "<td></td>",
}


def use_one_address(app: Sphinx, config: Config) -> None:
    config.ogp_site_url = config.html_baseurl
    config.notfound_urls_prefix = urlsplit(config.html_baseurl).path


def serve_mathjax(app: Sphinx) -> None:
    """Add MathJax to the site's static files: of the package's 24 MB what a page can ask for."""
    if app.builder.name == "epub":
        return
    package = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent / "static"
    staging = Path(app.doctreedir, "static")
    for pattern in MATHJAX:
        for file in package.glob(f"mathjax/{pattern}"):
            target = staging / file.relative_to(package)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
    app.config.html_static_path.append(str(staging))


def use_public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> None:
    """Let intersphinx look torch's classes up by the names that its documentation has."""
    name = re.sub(r"^torch\.nn\.modules\.\w+\.", "torch.nn.", node["reftarget"])
    node["reftarget"] = PUBLIC_NAMES.get(name, name)


def fix_page(
    app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document
) -> None:
    body = context.get("body", "")
    for wrong, right in BODY_FIXES.items():
        body = body.replace(wrong, right)
    context["body"] = give_sizes(app, body, lazy=pagename != app.config.root_doc)
    if pagename == "search":
        for kind in ("script_files", "css_files"):
            context[kind] = [file for file in context[kind] if not FOR_ARTICLES.search(str(file))]
    if 'class="math' not in body:  # Sphinx adds it to each page that lists one with mathematics
        scripts = context["script_files"]
        context["script_files"] = [
            script for script in scripts if "mathjax" not in str(script).lower()
        ]


def give_sizes(app: Sphinx, body: str, lazy: bool) -> str:
    """Tell the browser how large each picture will be, so that nothing moves when it arrives."""
    files = {name: Path(app.srcdir, source) for source, name in app.builder.images.items()}

    def sized(tag: re.Match[str]) -> str:
        with Image.open(files[tag["name"]]) as image:
            width, height = image.size
        later = ' loading="lazy"' if lazy else ""
        return f'{tag[0]} width="{width}" height="{height}"{later}'

    return re.sub(r'<img(?=[^>]*alt=)[^>]*src="[^"]*_images/(?P<name>[^"/]+\.png)"', sized, body)


def setup(app: Sphinx) -> dict[str, object]:
    app.connect("config-inited", use_one_address)
    app.connect("builder-inited", serve_mathjax)
    app.connect("missing-reference", use_public_name, priority=400)  # before intersphinx's 500
    app.connect("html-page-context", fix_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
