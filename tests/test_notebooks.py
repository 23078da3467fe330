"""The notebooks keep the form of the book: executed pairs of short, explained cells; alt texts."""

import re
import statistics
import tomllib
from collections import Counter
from pathlib import Path

import jupytext
import nbformat
import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
CHAPTERS = sorted((ROOT / "book/chapters").glob("*.ipynb"))
NOTEBOOKS = [*CHAPTERS, ROOT / "book/bug_museum.ipynb"]
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ON_COLAB = {"matplotlib", "numpy", "seaborn", "torch", "tqdm"}  # what Colab has, and must keep
CLAIM = "application/vnd.companion.claim+json"
MACHINE = re.compile(r"0x[0-9a-f]{6,}|/(tmp|home|root|Users|var/folders)/|ipykernel_\d+")

each_notebook = pytest.mark.parametrize(
    "notebook", [pytest.param(path, id=path.stem) for path in NOTEBOOKS], indirect=True
)


@pytest.fixture
def notebook(request: pytest.FixtureRequest) -> nbformat.NotebookNode:
    return read(request.param)


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    notebook.path = path
    return notebook


def all_code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """What a reader reads: without the first cell, which is for Colab."""
    return all_code(notebook)[1:]


def colab_cell() -> str:
    """Install the companion and what it needs on Colab, whose torch stays as it is."""
    extras = PROJECT["optional-dependencies"]
    needs = [*PROJECT["dependencies"], *extras["plot"], *extras["g2p"]]
    missing = {Requirement(need).name for need in needs} - ON_COLAB
    repository = CONFIG["repository"]
    return f"""import sys

if "google.colab" in sys.modules:
    %pip install -q --no-deps git+{repository["url"]}@{repository["branch"]}
    %pip install -q {" ".join(sorted(missing))}"""


def prose(notebook: nbformat.NotebookNode) -> str:
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def bundles(cell: nbformat.NotebookNode) -> list[dict]:
    return [output.data for output in cell.outputs if "data" in output]


def figures(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in code(notebook) if any("image/png" in data for data in bundles(cell))]


def alt_text(cell: nbformat.NotebookNode) -> str:
    return cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")


def test_reading_order_lists_the_chapters_that_exist():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    files = [page["file"] for part in toc["parts"] for page in part["chapters"]]
    listed = [ROOT / file for file in files if file.startswith("book/chapters/")]
    assert listed == CHAPTERS


@each_notebook
def test_twins_are_equal(notebook):
    def cells(notebook):
        return [(cell.cell_type, cell.source, cell.metadata) for cell in notebook.cells]

    twin = jupytext.read(notebook.path.with_suffix(".md"))
    for ours, theirs in zip(cells(notebook), cells(twin), strict=True):
        assert ours == theirs, "the .ipynb and its .md differ: run make notebooks"


@each_notebook
def test_every_cell_was_executed_in_order(notebook):
    counts = [cell.execution_count for cell in all_code(notebook)]
    assert counts == list(range(1, len(counts) + 1))


@each_notebook
def test_first_cell_prepares_colab_unseen(notebook):
    first = all_code(notebook)[0]
    assert first.source == colab_cell()
    assert first.metadata == {"tags": ["remove-cell"]}
    assert first.outputs == []


@each_notebook
def test_code_cells_are_short(notebook):
    lengths = [len(cell.source.splitlines()) for cell in code(notebook)]
    assert statistics.median(lengths) <= 6
    assert max(lengths) <= 25


@each_notebook
def test_code_is_explained(notebook):
    assert len(prose(notebook).split()) >= 50 * len(code(notebook))


@each_notebook
def test_outputs_say_nothing_of_the_machine(notebook):
    for cell in code(notebook):
        for output in cell.outputs:
            assert output.get("name") != "stderr", output.text
            texts = [output.get("text", ""), *output.get("data", {}).values()]
            for text in texts[:1] if "image/png" in output.get("data", {}) else texts:
                assert not MACHINE.search(str(text)), text


@each_notebook
def test_notebook_uses_the_companion(notebook):
    source = "\n".join(cell.source for cell in code(notebook))
    assert re.search(r"^(from|import) companion\b", source, re.MULTILINE)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_chapters_have_light_explorers(chapter):
    """At most 10,000 bytes each, so that pages stay light."""
    outputs = [data.get("text/html", "") for cell in code(read(chapter)) for data in bundles(cell)]
    sizes = [len(html.encode()) for html in outputs if 'class="explore"' in html]
    assert sizes
    assert max(sizes) <= 10_000


@each_notebook
def test_figures_are_described(notebook):
    for cell in figures(notebook):
        assert len(alt_text(cell)) >= 30, f"state the finding in mystnb.image.alt of: {cell.source}"


def test_no_two_figures_have_one_description():
    texts = Counter(alt_text(cell) for path in NOTEBOOKS for cell in figures(read(path)))
    assert [text for text, uses in texts.items() if uses > 1] == []


@each_notebook
def test_claims_are_complete_and_can_be_linked_to(notebook):
    for data in (data for cell in code(notebook) for data in bundles(cell) if CLAIM in data):
        claim = data[CLAIM]
        assert set(claim) == {"number", "claim", "measured", "verdict", "because"}
        assert claim["verdict"] in {"holds", "holds when", "misleading"}
        assert claim["verdict"] == "holds" or claim["because"]
        assert claim["measured"]
        assert f"(claim-{claim['number']})=\n#" in prose(notebook)
