"""``{live-figure} WORD``: how a trained model reads a word, for the reader to explore.

The figure is computed when the site is built. The content of the directive is its caption.
"""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from companion.explore import explore_weights
from companion.g2p import load_model
from companion.g2p.probes import alignments


class LiveFigure(SphinxDirective):
    """An explorer of the additive model's attention, above a caption."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        word = self.arguments[0]
        phonemes, weights = alignments(load_model("additive"), [word])[word]
        title = f"Where does a model look while it pronounces “{word}”?"
        explorer = explore_weights(weights, phonemes, word, title=title)
        return [
            nodes.raw("", explorer._repr_html_(), format="html"),
            nodes.container("", *self.parse_content_to_nodes(), classes=["live-figure-caption"]),
        ]


def setup(app: Sphinx) -> dict[str, object]:
    app.add_directive("live-figure", LiveFigure)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
