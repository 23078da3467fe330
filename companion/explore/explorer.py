"""The base of every explorer: a figure in HTML that needs nothing but itself."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Any

LARGEST = 30_000
"""Bytes that an explorer may weigh; those of the book weigh at most 10,000."""


@dataclass(frozen=True, repr=False)
class Explorer:
    """A figure to play with, shown by a notebook and by a static page alike.

    Its HTML holds style, script, data and a table, and asks no server for anything. Where scripts
    do not run, as in a notebook that is not trusted or on GitHub, the table is what is seen. The
    same content gives the same HTML. As text it says what the figure states, which is what a test
    of a notebook should compare.

    Args:
        title: shown above.
        text: what the figure states, shown in a terminal.
        table: of what the figure states, where no script runs; from :func:`plain_table`.
        script: file name of a function ``(data, element) => {}`` beside this module, which fills
            the element. What it may use is in ``explore.js``.
        data: what the script gets; anything that JSON can hold.

    Raises:
        ValueError: the HTML is larger than 30,000 bytes.
    """

    title: str
    text: str
    table: str
    script: str
    data: Any

    def __post_init__(self) -> None:
        size = len(self._repr_html_().encode())
        if size > LARGEST:
            raise ValueError(
                f"this explorer weighs {size:,} bytes, and at most {LARGEST:,} are allowed: "
                "show a part of it, or shorter tokens"
            )

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        data = json.dumps(self.data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        data = data.replace("<", "\\u003c")  # no text can end the script
        shared, script = _read("explore.js"), _read(self.script)
        # Equal content has an equal mark: the first of two on a page then starts both.
        mark = sha256((self.title + self.table + data + script).encode()).hexdigest()[:8]
        return (
            f'<figure class="explore" data-explore="{mark}"><style>{_read("explore.css")}</style>'
            f"<figcaption>{html.escape(self.title)}</figcaption><div></div>"
            f"<details open><summary>As a table</summary>{self.table}</details>"
            f'<script type="application/json">{data}</script>'
            f"<script>(() => {{\n{shared}const build = {script};\n"
            f"for (const e of document.querySelectorAll('[data-explore=\"{mark}\"]')) {{\n"
            "  const [ui, details] = e.querySelectorAll('div, details');\n"
            "  if (ui.firstChild) continue;\n"
            "  build(JSON.parse(e.querySelector('[type]').textContent), ui);\n"
            "  details.open = false;\n}\n})()</script></figure>"
        )


@cache
def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8").rstrip(";\n") + "\n"


def plain_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a table in HTML; the first cell of a row names it.

    Args:
        caption: what the table shows.
        head: names of the columns.
        rows: cells of each row, as many as ``head`` has.

    >>> plain_table("Ages", ["who", "years"], [["<Ann>", 7]])[171:]
    '<tr><th scope="row">&lt;Ann&gt;</th><td>7</td></tr></tbody></table></div>'
    """
    columns = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{html.escape(str(name))}</th>'
        + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in rows
    )
    caption = html.escape(caption)
    return (
        f'<div class="xs" tabindex="0" role="group" aria-label="{caption}"><table>'
        f"<caption>{caption}</caption><thead><tr>{columns}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def shown(token: str) -> str:
    """Give a token a form that can be seen: itself, or quoted if it has nothing to see.

    >>> shown("a b"), shown(""), shown(" ")
    ('a b', '""', '" "')
    """
    token = token.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    visible = any(letter.isprintable() and not letter.isspace() for letter in token)
    return token if visible else json.dumps(token)
