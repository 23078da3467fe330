"""A chapter's first mention of a term leads to the glossary."""

import subprocess
import sys
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

ROOT = Path(__file__).parents[1]
CONF = f"""
import sys
sys.path.insert(0, {str(ROOT / "book/_ext")!r})
extensions = ["myst_parser", "glossary_links"]
root_doc = "index"
exclude_patterns = ["out"]
"""
INDEX = """# Book

Attention to weights, outside of the chapters.

```{toctree}
book/chapters/01_one
book/chapters/02_two
```

```{glossary}
attention
  What this is about.

self-attention
  Of a sequence to itself.

weights
  Shares.

edit distance
  Of two words.
```
"""
ONE = """# Attention in a title

Self-attention is a form of *attention* with weights. Attention again, self-attention and
`edit distance`. No inattention, no attention-like word. An edit
distance; two edit distances.

```python
weights
```
"""
TWO = """# Two

Weight. The {term}`shares <weights>` are weights.
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    book = tmp_path_factory.mktemp("book")
    (book / "book/chapters").mkdir(parents=True)
    for name, text in {
        "conf.py": CONF,
        "index.md": INDEX,
        "book/chapters/01_one.md": ONE,
        "book/chapters/02_two.md": TWO,
    }.items():
        (book / name).write_text(text, "utf-8")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", str(book), str(book / "out")]
    subprocess.run(command, check=True)
    return book / "out"


def links(page: Path) -> list[tuple[str, str]]:
    html = BeautifulSoup(page.read_text("utf-8"), "html.parser").select_one("[role=main]")
    tags = html.select('a[href*="#term-"]:not(.headerlink)')
    return [(tag.get_text(), tag["href"].partition("#")[2]) for tag in tags]


def test_each_term_is_linked_once_at_its_first_mention(site):
    assert links(site / "book/chapters/01_one.html") == [
        ("Self-attention", "term-self-attention"),
        ("attention", "term-attention"),
        ("weights", "term-weights"),
        ("edit distance", "term-edit-distance"),
    ]


def test_what_the_author_has_linked_is_not_linked_again(site):
    assert links(site / "book/chapters/02_two.html") == [("shares", "term-weights")]


def test_other_pages_stay_as_they_are(site):
    assert links(site / "index.html") == []
