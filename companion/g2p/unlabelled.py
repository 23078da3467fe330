"""English words that the dictionary lacks: spelling alone, for trained models to pronounce."""

from __future__ import annotations

import gzip
import json
import re
from importlib import resources

from companion.g2p.lexicon import Lexicon

_WORD = re.compile(r"[a-z][a-z']{2,17}")


def unlabelled_words(lexicon: Lexicon) -> list[str]:
    """List surnames and words that have no pronunciation in a dictionary.

    The surnames are those of the US census of 1990, which the package ``names`` ships (public
    domain); the words are a spelling checker's, of ``pyspellchecker``. No download. Words of 3 to
    18 letters; whatever the dictionary lists, in any split, is left out.

    Args:
        lexicon: the dictionary.

    Returns:
        About 140,000 words, in alphabetical order.

    Raises:
        ModuleNotFoundError: one of the packages is not installed.

    Chapter: 6.

    >>> from companion.g2p.lexicon import load_lexicon
    >>> words = unlabelled_words(load_lexicon())
    >>> "sciacchitano" in words, "sagaciously" in words, "attention" in words
    (True, True, False)
    """
    try:
        surnames = resources.files("names").joinpath("dist.all.last").read_text("utf-8")
        checked = resources.files("spellchecker").joinpath("resources/en.json.gz").read_bytes()
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the lists of words to learn from are not installed: "
            "pip install 'attention-companion[distillation]'",
            name=error.name,
        ) from None
    # A line of the census: name, frequency, cumulative frequency, rank.
    words = {line.split()[0].lower() for line in surnames.splitlines()}
    words.update(json.loads(gzip.decompress(checked)))
    return sorted(word for word in words if _WORD.fullmatch(word) and word not in lexicon)
