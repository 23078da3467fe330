"""Words with the same letters: what chapter 5 measures about order.

Two anagrams hold the same letters. A model that does not know their order cannot tell them apart,
whatever it has learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.attention import check_positive
from companion.g2p.lexicon import NUM_LETTERS, PAD, Lexicon, Pronunciation, encode_words
from companion.masks import padding_mask
from companion.positional import SinusoidalPositionalEncoding
from companion.self_attention import SelfAttention

# fmt: off
VOWELS = frozenset((
    "AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW",
))
# fmt: on


def starts_with_vowel(pronunciations: Sequence[Pronunciation]) -> bool | None:
    """Say whether a word's first sound is a vowel; None where its pronunciations disagree.

    >>> starts_with_vowel([("AW", "ER"), ("AW", "R")]), starts_with_vowel([("Y", "UW")])
    (True, False)
    """
    answers = {p[0] in VOWELS for p in pronunciations}
    return answers.pop() if len(answers) == 1 else None


def split_anagrams(lexicon: Lexicon) -> tuple[list[tuple[str, str]], dict[str, bool]]:
    """Find words with the same letters of which only one begins with a vowel sound.

    Returns:
        ``(pairs, others)``: pairs of words, first the one with the vowel; a set of letters gives at
        most one, the alphabetically first word of either kind. And the words whose letters are
        those of no pair, with what :func:`starts_with_vowel` says. Words whose pronunciations
        disagree are left out.

    Chapter: 5, self-attention.

    >>> words = {"arm": "AA R M", "mar": "M AA R", "ram": "R AE M", "it": "IH T"}
    >>> split_anagrams({word: (tuple(sounds.split()),) for word, sounds in words.items()})
    ([('arm', 'mar')], {'it': True})
    """
    groups: dict[str, dict[bool, list[str]]] = {}
    for word in sorted(lexicon):
        answer = starts_with_vowel(lexicon[word])
        if answer is not None:
            groups.setdefault("".join(sorted(word)), {}).setdefault(answer, []).append(word)
    pairs = [(group[True][0], group[False][0]) for group in groups.values() if len(group) == 2]
    alike = [group for group in groups.values() if len(group) == 1]
    others = {w: answer for group in alike for answer, words in group.items() for w in words}
    return pairs, others


class FirstSound(nn.Module):
    """Say whether a word's first sound is a vowel, with one layer of self-attention.

    Letters are embedded and attend to each other; the mean of the results is reduced to one logit.
    Nothing but ``positions`` and ``causal`` can tell it in which order the letters stand.

    Args:
        positions: add sinusoidal positions to the letters.
        causal: let a letter see itself and those before it alone.
        d_model: features of a letter.

    Raises:
        TypeError, ValueError: a size that is not a positive integer.

    Chapter: 5, self-attention.

    >>> FirstSound()(*encode_words(["listen", "in"])).shape
    torch.Size([2])
    """

    def __init__(self, *, positions: bool = False, causal: bool = False, d_model: int = 32) -> None:
        super().__init__()
        check_positive(d_model=d_model)
        self.embedding = nn.Embedding(NUM_LETTERS, d_model, padding_idx=PAD)
        self.positions = SinusoidalPositionalEncoding(d_model) if positions else nn.Identity()
        self.attention = SelfAttention(d_model)
        self.causal = causal
        self.to_logit = nn.Linear(d_model, 1)

    def forward(self, letters: Int[Tensor, "B L"], lengths: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
        """Return a logit for each word, above 0 for a vowel."""
        mask = padding_mask(lengths, letters.shape[1])  # (B, 1, L)
        x = self.positions(self.embedding(letters))
        attended, _ = self.attention(x, mask=mask, is_causal=self.causal)
        mean = (attended * mask.mT).sum(dim=1) / lengths[:, None]
        logits: Tensor = self.to_logit(mean).squeeze(-1)
        return logits


def learn_first_sound(
    words: Mapping[str, bool],
    pairs: Sequence[tuple[str, str]],
    *,
    seed: int,
    positions: bool = False,
    causal: bool = False,
    steps: int = 300,
    batch_size: int = 32,
    learning_rate: float = 1e-2,
) -> float:
    """Train a :class:`FirstSound` in float64 on some words, and test it on pairs of anagrams.

    Args:
        words: to learn from, each with its answer, as from :func:`split_anagrams`.
        pairs: to test on: a word that begins with a vowel sound, and one that does not.
        seed: of the initial weights and the batches.
        positions: as in :class:`FirstSound`, and so the next.
        causal: likewise.
        steps: training steps.
        batch_size: words a step.
        learning_rate: of Adam; it falls linearly to 0.

    Returns:
        The share of the pairs' words that it judges rightly, 0 to 1. A model that cannot tell two
        anagrams apart gets exactly one of each pair: 0.5.

    Raises:
        TypeError, ValueError: sizes that are not positive integers; no words or no pairs.

    Chapter: 5, self-attention.
    """
    check_positive(steps=steps, batch_size=batch_size)
    if not words or not pairs:
        raise ValueError("expected words to learn from and pairs to test on, got none")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = FirstSound(positions=positions, causal=causal).double()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    listed = list(words)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = learning_rate * (1 - step / steps)
        drawn = torch.randint(len(listed), (batch_size,), generator=generator).tolist()
        batch = [listed[i] for i in drawn]
        target = torch.tensor([words[word] for word in batch]).double()
        loss = F.binary_cross_entropy_with_logits(model(*encode_words(batch)), target)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        vowel, other = (model(*encode_words(side)) > 0 for side in zip(*pairs, strict=True))
    return float(torch.cat([vowel, ~other]).double().mean())
