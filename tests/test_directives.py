"""The evidence tables show what the notebooks and results hold, and refuse what is inconsistent."""

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).parents[1]
CONF = f"""
import sys
sys.path.insert(0, {str(ROOT / "book/_ext")!r})
extensions = ["myst_nb", "sphinxcontrib.bibtex", "claims", "scoreboard"]
bibtex_bibfiles = ["references.bib"]
nb_execution_mode = "off"
root_doc = "index"
exclude_patterns = ["out", "jupyter_execute"]
suppress_warnings = ["mystnb.unknown_mime_type"]
"""
INDEX = """# Book

```{toctree}
book/chapters/01_one
book/chapters/02_two
```

```{claims-table}
```

```{scoreboard}
```

```{bibliography}
```
"""
RESULTS = {
    "later": {"label": "Later", "chapter": 2, "parameters": 2_054_321, "wall_minutes": 44.4},
    "first": {"label": "First", "chapter": 1, "parameters": 2_012_345, "wall_minutes": 41.5},
}
TEST = {"word_error_rate": 0.2621, "phoneme_error_rate": 0.064, "words": 6000}
PUBLISHED = {
    "label": "WFST",
    "word_error_rate": 0.339,
    "phoneme_error_rate": None,
    "cite": "key",
    "note": "other split",
}


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A book of two chapters with a claim each, the second chapter's first in number."""
    for name, text in {
        "conf.py": CONF,
        "index.md": INDEX,
        "references.bib": "@misc{key, title = {A title}, author = {An Author}, year = {2020}}",
        "companion/g2p/checkpoints/results.json": json.dumps(
            {name: {**model, "test": TEST} for name, model in RESULTS.items()}
        ),
        "companion/g2p/checkpoints/published.json": json.dumps([PUBLISHED]),
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (tmp_path / "book/chapters").mkdir(parents=True)
    write_chapter(tmp_path, "01_one", number=2, verdict="holds when", because="L is large")
    write_chapter(tmp_path, "02_two", number=1, verdict="holds", because="")
    return tmp_path


def write_chapter(book: Path, name: str, label: int | None = None, **claim: object) -> None:
    claim = {"claim": f"Claim of {name}.", "measured": [["ratio", "3.1"]], **claim}
    output = new_output(
        "display_data", {"application/vnd.companion.claim+json": claim, "text/plain": "claim"}
    )
    section = f"(claim-{label or claim['number']})=\n## Section of {name}"
    cells = [new_markdown_cell(f"# {name}"), new_markdown_cell(section)]
    cells.append(new_code_cell("claim", outputs=[output], execution_count=1))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=cells, metadata=kernel), book / f"book/chapters/{name}.ipynb")


def build(book: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        str(book),
        str(book / "out"),
    ]
    return subprocess.run(command, capture_output=True, text=True)


def rows(book: Path, name: str) -> list[list[str]]:
    html = BeautifulSoup((book / "out/index.html").read_text("utf-8"), "html.parser")
    table = html.select_one(f"table.{name}")
    return [
        [" ".join(cell.get_text().split()) for cell in row.select("td")]
        for row in table.select("tbody tr")
    ]


def test_tables_show_the_evidence(book):
    result = build(book)
    assert result.returncode == 0, result.stderr
    assert rows(book, "claims-table") == [
        ["1", "Claim of 02_two.", "ratio: 3.1", "Holds.", "Section of 02_two"],
        ["2", "Claim of 01_one.", "ratio: 3.1", "Holds when L is large.", "Section of 01_one"],
    ]
    ours, theirs = rows(book, "scoreboard")[:2], rows(book, "scoreboard")[2]
    assert ours == [
        ["First", "1", "2,012,345", "42", "26.2", "6.4"],
        ["Later", "2", "2,054,321", "44", "26.2", "6.4"],
    ]
    assert theirs[0].startswith("WFST [Aut20]")
    assert theirs[1:] == ["published", "–", "–", "33.9", "–"]

    write_chapter(book, "02_two", number=1, verdict="misleading", because="it is not so")
    assert build(book).returncode == 0
    assert rows(book, "claims-table")[0][3] == "Misleading because it is not so."


def test_a_claim_made_twice_fails(book):
    write_chapter(book, "02_two", number=2, verdict="holds", because="")
    result = build(book)
    assert result.returncode != 0
    assert "claim 2 is made twice" in result.stderr


def test_a_claim_without_its_section_fails(book):
    write_chapter(book, "02_two", label=7, number=1, verdict="holds", because="")
    result = build(book)
    assert result.returncode != 0
    assert "claim-1" in result.stderr
