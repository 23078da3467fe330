"""Docutils nodes that the evidence tables are made of, so that every builder can write them."""

from docutils import nodes
from sphinx.addnodes import pending_xref


def reference(kind: str, target: str, docname: str, text: str = "") -> pending_xref:
    """A cross-reference to a label ("ref") or page ("doc"), by default with the target's title."""
    return pending_xref(
        "",
        nodes.inline("", text or target),
        refdomain="std",
        reftype=kind,
        reftarget=target,
        refdoc=docname,
        refexplicit=bool(text),
        refwarn=True,
    )


def table(name: str, header: list[str], rows: list[list[str | nodes.Element]]) -> nodes.table:
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in header), cols=len(header))
    group += nodes.thead("", _row(header))
    group += nodes.tbody("", *map(_row, rows))
    return nodes.table("", group, classes=["evidence", name])


def _row(cells: list[str | nodes.Element]) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        content = nodes.inline("", cell) if isinstance(cell, str) else cell
        is_block = isinstance(content, nodes.Body)
        row += nodes.entry("", content if is_block else nodes.paragraph("", "", content))
    return row
