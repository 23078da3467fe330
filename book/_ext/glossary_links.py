"""Link each term of the glossary where a chapter first uses it."""

import re
from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.nodes import make_refnode

PAGES = ("book/chapters/", "book/bug_museum")
# Where a link would change what is quoted, or stand inside another one.
CLOSED = (nodes.title, nodes.literal, nodes.literal_block, nodes.reference, nodes.math, nodes.raw)


def link_terms(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Turn the first mention of each term into a link, unless the author has linked it before."""
    if not docname.startswith(PAGES):
        return
    terms = {
        name.lower(): target
        for (kind, name), target in app.env.get_domain("std").objects.items()
        if kind == "term"
    }
    for paragraph in doctree.findall(nodes.paragraph):
        _join_lines(paragraph)
    for node in list(_open_nodes(doctree)):
        if isinstance(node, nodes.reference):
            for name in [n for n, (page, label) in terms.items() if _leads_to(node, page, label)]:
                del terms[name]
        else:
            _link_in(node, terms, app, docname)


def _join_lines(paragraph: nodes.paragraph) -> None:
    """Make neighbouring texts one, so that a term may go over the end of a line."""
    joined: list[nodes.Node] = []
    for child in paragraph.children:
        if joined and isinstance(child, nodes.Text) and isinstance(joined[-1], nodes.Text):
            joined[-1] = nodes.Text(joined[-1] + child)
        else:
            joined.append(child)
    paragraph.children = []
    paragraph += joined


def _open_nodes(node: nodes.Node) -> Iterator[nodes.Text | nodes.reference]:
    """Walk through prose and links in reading order."""
    for child in node.children:
        is_prose = isinstance(child, nodes.Text) and _in_prose(child)
        if is_prose or isinstance(child, nodes.reference):
            yield child
        elif not isinstance(child, CLOSED):
            yield from _open_nodes(child)


def _in_prose(text: nodes.Text) -> bool:
    parent = text.parent
    while parent is not None and not isinstance(parent, nodes.paragraph):
        parent = parent.parent
    return parent is not None


def _leads_to(link: nodes.reference, page: str, label: str) -> bool:
    address = link.get("refuri", "") + "#" + link.get("refid", "")
    return f"#{label}" in address


def _link_in(
    text: nodes.Text, terms: dict[str, tuple[str, str]], app: Sphinx, docname: str
) -> None:
    parts: list[nodes.Node] = []
    rest = str(text).replace("\n", " ")
    while found := _first_term(rest, terms):
        page, label = terms.pop(found.group(1).lower())
        parts.append(nodes.Text(rest[: found.start()]))
        shown = nodes.inline("", found.group(), classes=["std", "std-term"])
        parts.append(make_refnode(app.builder, docname, page, label, shown))
        rest = rest[found.end() :]
    if parts:
        text.parent.replace(text, [*parts, nodes.Text(rest)])


def _first_term(text: str, terms: dict[str, tuple[str, str]]) -> re.Match[str] | None:
    """Find a whole word or phrase, also in the plural; of two that start alike the longer one."""
    if not terms:
        return None
    names = "|".join(re.escape(name) for name in sorted(terms, key=len, reverse=True))
    return re.search(rf"(?<![\w-])({names})s?(?![\w-])", text, re.IGNORECASE)


def setup(app: Sphinx) -> dict[str, object]:
    app.connect("doctree-resolved", link_terms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
