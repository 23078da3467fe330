"""``{scoreboard}``: the test scores of the trained models, beside published ones."""

import json
from pathlib import Path

from docutils import nodes
from evidence_nodes import reference, table
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

CHECKPOINTS = "companion/g2p/checkpoints"
HEADER = [
    "Model",
    "Chapter",
    "Parameters",
    "Training, minutes",
    "Word error rate, %",
    "Phoneme error rate, %",
]


class Scoreboard(SphinxDirective):
    """Our models in the order of the chapters, then published ones; below, how to read those."""

    def run(self) -> list[nodes.Node]:
        models = sorted(self.read("results.json").values(), key=lambda model: model["chapter"])
        published = self.read("published.json")
        rows = [self.trained(model) for model in models]
        rows += [self.published(model) for model in published]
        notes = [f"{model['label']}: {model['note']}" for model in published if model["note"]]
        items = [nodes.list_item("", nodes.paragraph("", note)) for note in notes]
        return [
            table("scoreboard", HEADER, rows),
            nodes.bullet_list("", *items, classes=["scoreboard-notes"]),
        ]

    def read(self, name: str):
        path = Path(self.env.srcdir, CHECKPOINTS, name)
        self.env.note_dependency(path)
        return json.loads(path.read_text("utf-8"))

    def trained(self, model: dict) -> list[str | nodes.Element]:
        size, minutes = f"{model['parameters']:,}", f"{model['wall_minutes']:.0f}"
        return [
            model["label"],
            self.chapter(model["chapter"]),
            size,
            minutes,
            *scores(model["test"]),
        ]

    def published(self, model: dict) -> list[str | nodes.Element]:
        text = f"{model['label']} {{cite:p}}`{model['cite']}`"
        label, messages = self.parse_inline(text, lineno=self.lineno)
        return [nodes.inline("", "", *label, *messages), "published", "–", "–", *scores(model)]

    def chapter(self, number: int) -> str | nodes.Element:
        start = f"book/chapters/{number:02d}_"
        page = next((name for name in self.env.found_docs if name.startswith(start)), None)
        return reference("doc", f"/{page}", self.env.docname, str(number)) if page else str(number)


def scores(test: dict) -> list[str]:
    rates = [test["word_error_rate"], test["phoneme_error_rate"]]
    return ["–" if rate is None else f"{100 * rate:.1f}" for rate in rates]


def setup(app: Sphinx) -> dict[str, object]:
    app.add_directive("scoreboard", Scoreboard)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
