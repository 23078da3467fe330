"""``{claims-table}``: every claim of the book, gathered from the chapters' committed outputs.

A chapter's cell shows a claim as an output of type ``CLAIM``; the label ``claim-N`` stands before
the section.
"""

import json
from pathlib import Path

from docutils import nodes
from evidence_nodes import reference, table
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

CLAIM = "application/vnd.companion.claim+json"
VERDICTS = {"holds": "Holds", "holds when": "Holds when", "misleading": "Misleading because"}

logger = logging.getLogger(__name__)


class ClaimsTable(SphinxDirective):
    """What was claimed, what was measured, the verdict, and the section that measures it."""

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # any chapter, also a new one, may have changed
        claims: dict[int, dict] = {}
        for docname in sorted(self.env.found_docs):
            for claim in read_claims(Path(self.env.doc2path(docname))):
                if claim["number"] in claims:
                    logger.warning("claim %d is made twice", claim["number"], location=docname)
                claims[claim["number"]] = claim
        header = ["No.", "Claim", "Measured", "Verdict", "Where"]
        return [
            table("claims-table", header, [self.row(claims[number]) for number in sorted(claims)])
        ]

    def row(self, claim: dict) -> list[str | nodes.Element]:
        measured = [nodes.line("", f"{label}: {number}") for label, number in claim["measured"]]
        where = reference("ref", f"claim-{claim['number']}", self.env.docname)
        block = nodes.line_block("", *measured)
        return [str(claim["number"]), claim["claim"], block, verdict(claim), where]


def read_claims(page: Path) -> list[dict]:
    if page.suffix != ".ipynb":
        return []
    cells = json.loads(page.read_text("utf-8"))["cells"]
    bundles = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    return [bundle[CLAIM] for bundle in bundles if CLAIM in bundle]


def verdict(claim: dict) -> nodes.inline:
    kind, because = claim["verdict"], claim["because"]
    word = nodes.strong("", VERDICTS[kind], classes=["verdict", f"verdict-{kind.split()[-1]}"])
    joint = ": " if kind == "holds" else " "
    return nodes.inline("", "", word, nodes.Text(f"{joint}{because}." if because else "."))


def setup(app: Sphinx) -> dict[str, object]:
    app.add_directive("claims-table", ClaimsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
