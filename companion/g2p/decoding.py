"""Writing a word's phonemes: greedily, or with several candidates side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from companion.attention import check_positive
from companion.g2p.lexicon import END, PAD, START

Step: TypeAlias = Callable[
    [Int[Tensor, "B"]], tuple[Float[Tensor, "B num_phonemes"], Float[Tensor, "B L"] | None]
]


@torch.no_grad()
def greedy(
    step: Step, lengths: Int[Tensor, "B"], max_len: int
) -> tuple[Int[Tensor, "B T"], Float[Tensor, "B T L"] | None]:
    """Write the most likely next phoneme again and again, until every word has its END.

    Args:
        step: given the phonemes just written ``(B,)``, the logits of the next ones and where the
            model looked, or None.
        lengths: ``(B,)``, letters of each word.
        max_len: stop after this many phonemes even without END.

    Returns:
        ``(phonemes, weights)``: ``(B, T)`` with END, then padding; ``(B, T, L)`` or None.

    Raises:
        TypeError, ValueError: ``max_len`` is not a positive integer.
    """
    check_positive(max_len=max_len)
    previous = torch.full_like(lengths, START)
    finished = torch.zeros_like(lengths, dtype=torch.bool)
    phonemes, alignment = [], []
    for _ in range(max_len):
        logits, weights = step(previous)
        logits[:, [PAD, START]] = -torch.inf
        previous = logits.argmax(dim=-1).masked_fill(finished, PAD)
        phonemes.append(previous)
        if weights is not None:
            alignment.append(weights)
        finished = finished | (previous == END)
        if bool(finished.all()):
            break
    return torch.stack(phonemes, dim=1), torch.stack(alignment, dim=1) if alignment else None


@torch.no_grad()
def beam_search(
    model: Callable[[Tensor, Tensor, Tensor], Tensor],
    letters: Int[Tensor, "B L"],
    lengths: Int[Tensor, "B"],
    *,
    beams: int,
    max_len: int = 40,
) -> Int[Tensor, "B T"]:
    """Keep the ``beams`` likeliest beginnings of every word, and return the likeliest whole.

    A pronunciation's score is the sum of its phonemes' log-probabilities. Every step runs the model
    over all that is written: slower than it could be, and the same code for every model.

    Args:
        model: called as ``model(letters, lengths, phonemes)``, with logits for ``phonemes[:, 1:]``.
        letters: ``(B, L)`` letter indices, padded with 0.
        lengths: ``(B,)``.
        beams: how many beginnings are kept; 1 is greedy.
        max_len: stop after this many phonemes even without END.

    Returns:
        ``(B, T)`` phoneme indices with END, then padding.

    Raises:
        TypeError, ValueError: ``beams`` or ``max_len`` that is not a positive integer.

    Source: Sutskever, Vinyals and Le 2014, section 3.2. Chapter: 6.

    >>> from companion.g2p.transformer import TransformerG2P
    >>> from companion.g2p.lexicon import encode_words
    >>> model = TransformerG2P(2, d_model=8, num_layers=1, d_feedforward=16).eval()
    >>> beam_search(model, *encode_words(["cab", "a"]), beams=3, max_len=5).shape[0]
    2
    """
    check_positive(beams=beams, max_len=max_len)
    words = len(lengths)
    letters, lengths = (x.repeat_interleave(beams, dim=0) for x in (letters, lengths))
    written = torch.full((words * beams, 1), START, device=letters.device)
    # All beams of a word start alike: only the first may be continued, or all would stay alike.
    scores = torch.full((words, beams), -torch.inf, device=letters.device)
    scores[:, 0] = 0
    for _ in range(max_len):
        finished = (written == END).any(dim=1)
        unknown = torch.full_like(written[:, :1], PAD)
        logits = model(letters, lengths, torch.cat([written, unknown], dim=1))[:, -1]
        logits[:, [PAD, START]] = -torch.inf
        gains = logits.log_softmax(dim=-1)
        gains[finished] = -torch.inf
        gains[finished, PAD] = 0.0  # what is finished stays as it is
        totals = (scores.to(gains).unsqueeze(-1) + gains.view(words, beams, -1)).flatten(1)
        scores, chosen = totals.topk(beams, dim=-1)  # (words, beams)
        origin = torch.arange(words, device=chosen.device).unsqueeze(1) * beams
        origin = (origin + chosen // gains.shape[-1]).flatten()
        phonemes = (chosen % gains.shape[-1]).view(-1, 1)
        written = torch.cat([written[origin], phonemes], dim=1)
        if bool((written == END).any(dim=1).all()):
            break
    best = written.view(words, beams, -1)[:, 0, 1:]  # topk sorts: the likeliest is first
    longest = max(1, int((best != PAD).sum(dim=1).max()))
    return best[:, :longest]
