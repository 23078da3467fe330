"""The Transformer model: attention alone, no recurrent network (chapters 5 and 6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from companion.attention import check_dropout, check_positive
from companion.g2p.decoding import Step, greedy
from companion.g2p.lexicon import NUM_LETTERS, NUM_PHONEMES, PAD, letter_mask
from companion.masks import as_boolean_mask
from companion.multi_head import MultiHeadAttention
from companion.positional import SinusoidalPositionalEncoding

KeysValues: TypeAlias = tuple[Float[Tensor, "B H L d_head"], Float[Tensor, "B H L d_head"]]


@dataclass
class Cache:
    """What is kept from step to step while a word's phonemes are written.

    Attributes:
        letters: for each decoder layer, the projected keys and values of the encoded letters.
        mask: ``(B, 1, L)``, True at letters, False at padding.
        phonemes: for each decoder layer, those of the phonemes written so far.
    """

    letters: list[KeysValues]
    mask: Bool[Tensor, "B 1 L"]
    phonemes: list[KeysValues] = field(default_factory=list)

    @property
    def length(self) -> int:
        """How many phonemes have been written."""
        return self.phonemes[0][0].shape[-2] if self.phonemes else 0


@dataclass(frozen=True)
class LayerWeights:
    """The weights of every attention in the model, stacked over its layers.

    Attributes:
        encoder: ``(num_layers, B, H, L, L)``, letters to letters.
        decoder: ``(num_layers, B, H, T, T)``, phonemes to the phonemes before them.
        cross: ``(num_layers, B, H, T, L)``, phonemes to letters.
    """

    encoder: Float[Tensor, "num_layers B H L L"]
    decoder: Float[Tensor, "num_layers B H T T"]
    cross: Float[Tensor, "num_layers B H T L"]


class EncoderLayer(nn.Module):
    """Letters attend to letters; then a small network works on each position by itself."""

    def __init__(self, d_model: int, num_heads: int, d_feedforward: int, dropout: float) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, num_heads)
        self.feed_forward = _feed_forward(d_model, d_feedforward)
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "B L d_model"],
        mask: Bool[Tensor, "B L_q L"],
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B L d_model"], Float[Tensor, "B H L L"] | None]:
        """Transform the states; with ``need_weights`` also return the attention's weights."""
        normed = self.norms[0](x)
        attended, weights = self.self_attention(
            normed, normed, normed, mask=mask, need_weights=need_weights
        )
        x = x + self.dropout(attended)
        return x + self.dropout(self.feed_forward(self.norms[1](x))), weights


class DecoderLayer(nn.Module):
    """Phonemes attend to the phonemes before them, then to the letters; then a small network."""

    def __init__(self, d_model: int, num_heads: int, d_feedforward: int, dropout: float) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, num_heads)
        self.cross_attention = MultiHeadAttention(d_model, num_heads)
        self.feed_forward = _feed_forward(d_model, d_feedforward)
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def read(self, letters: Float[Tensor, "B L d_model"]) -> KeysValues:
        """Project the encoded letters into this layer's keys and values: once a word."""
        return self.cross_attention.project(letters, letters)

    def forward(
        self,
        x: Float[Tensor, "B T d_model"],
        letters: KeysValues,
        mask: Bool[Tensor, "B 1 L"],
        past: KeysValues | None = None,
        *,
        need_weights: bool = False,
    ) -> tuple[
        Float[Tensor, "B T d_model"],
        KeysValues,
        tuple[Float[Tensor, "B H T T"] | None, Float[Tensor, "B H T L"] | None],
    ]:
        """Transform the states of new phonemes.

        Returns:
            ``(x, phonemes, weights)``: the states; keys and values of the past and new phonemes;
            the weights of both attentions, or None for each.
        """
        normed = self.norms[0](x)
        keys, values = self.self_attention.project(normed, normed)
        if past is not None:
            keys = torch.cat([past[0], keys], dim=-2)
            values = torch.cat([past[1], values], dim=-2)
        attended, before = self.self_attention.attend(
            normed, keys, values, is_causal=True, need_weights=need_weights
        )
        x = x + self.dropout(attended)
        attended, cross = self.cross_attention.attend(
            self.norms[1](x), *letters, mask=mask, need_weights=need_weights
        )
        x = x + self.dropout(attended)
        x = x + self.dropout(self.feed_forward(self.norms[2](x)))
        return x, (keys, values), (before, cross)


def _feed_forward(d_model: int, d_feedforward: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(d_model, d_feedforward), nn.ReLU(), nn.Linear(d_feedforward, d_model)
    )


class TransformerG2P(nn.Module):
    """Read letters and write phonemes with attention alone.

    An encoder–decoder after Vaswani et al.: sinusoidal positions, layers of attention and a small
    network, each on a residual path. Layer normalisation stands before each part rather than after
    it, which trains without a long warm-up.

    Args:
        num_heads: heads of every attention.
        d_model: features of a position's state, divisible by ``num_heads``.
        num_layers: layers of the encoder, and of the decoder.
        d_feedforward: hidden units of the network that works on each position.
        dropout: probability of dropping an embedding or what a part adds, in training.

    Raises:
        TypeError, ValueError: sizes that are not positive integers; ``num_heads`` that does not
            divide ``d_model``; dropout outside ``[0, 1)``.

    Source: Vaswani et al. 2017; the place of the normalisation: Xiong et al. 2020.
    Chapters: 5 and 6.

    >>> from companion.g2p.lexicon import encode_words
    >>> _ = torch.manual_seed(0)
    >>> model = TransformerG2P(2, d_model=8, num_layers=1, d_feedforward=16).eval()
    >>> phonemes, weights = model.pronounce(*encode_words(["cab", "a"]), max_len=5)
    >>> phonemes.shape, weights.shape
    (torch.Size([2, 5]), torch.Size([2, 5, 3]))
    """

    def __init__(
        self,
        num_heads: int,
        *,
        d_model: int = 128,
        num_layers: int = 3,
        d_feedforward: int = 448,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(d_model=d_model, num_layers=num_layers, d_feedforward=d_feedforward)
        check_dropout(dropout)
        sizes = (d_model, num_heads, d_feedforward, dropout)
        self.letter_embedding = nn.Embedding(NUM_LETTERS, d_model, padding_idx=PAD)
        self.phoneme_embedding = nn.Embedding(NUM_PHONEMES, d_model, padding_idx=PAD)
        self.positions = SinusoidalPositionalEncoding(d_model, dropout)
        self.encoder = nn.ModuleList(EncoderLayer(*sizes) for _ in range(num_layers))
        self.decoder = nn.ModuleList(DecoderLayer(*sizes) for _ in range(num_layers))
        self.encoder_norm = nn.LayerNorm(d_model)
        self.decoder_norm = nn.LayerNorm(d_model)
        self.to_logits = nn.Linear(d_model, NUM_PHONEMES)

    def encode(
        self,
        letters: Int[Tensor, "B L"],
        lengths: Int[Tensor, "B"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Cache:
        """Read a batch of words.

        Args:
            letters: ``(B, L)`` letter indices, padded with 0.
            lengths: ``(B,)``, letters of each word, at least 1.
            mask: which letters a letter may attend to, in every layer: True = may attend, up to
                ``(B, L, L)``. Padding is hidden anyway, and the decoder may look at all letters.

        Returns:
            What the decoder needs to write the first phoneme.

        Raises:
            TypeError, ValueError: lengths that do not fit the letters; a mask that is floating
                point or does not broadcast.
        """
        return self._encode(letters, lengths, mask, need_weights=False)[0]

    def _encode(
        self, letters: Tensor, lengths: Tensor, mask: Tensor | None = None, *, need_weights: bool
    ) -> tuple[Cache, list[Tensor]]:
        real, kept = letter_mask(letters, lengths), []
        if mask is not None:
            mask = as_boolean_mask(mask, (*letters.shape, letters.shape[1]))
        seen = real if mask is None else real & mask
        x = self.positions(self.letter_embedding(letters))
        for layer in self.encoder:
            x, weights = layer(x, seen, need_weights=need_weights)
            kept.append(weights)
        x = self.encoder_norm(x)
        projected = [layer.read(x) for layer in self.decoder]  # type: ignore[operator]
        return Cache(projected, real), kept

    def decode(
        self, phonemes: Int[Tensor, "B T"], cache: Cache, *, need_weights: bool = False
    ) -> tuple[
        Float[Tensor, "B T num_phonemes"],
        list[tuple[Float[Tensor, "B H T T"] | None, Float[Tensor, "B H T L"] | None]],
    ]:
        """Predict what follows each phoneme; all are computed at once.

        Args:
            phonemes: ``(B, T)``, those that follow the ones in the cache.
            cache: from :meth:`encode`; the new phonemes are added to it.
            need_weights: whether to return the weights.

        Returns:
            ``(logits, weights)``; for each layer the weights of both attentions, or None for each.
        """
        x = self.positions(self.phoneme_embedding(phonemes), start=cache.length)
        past: list[KeysValues | None] = [*cache.phonemes] or [None] * len(self.decoder)
        kept, written = [], []
        for layer, letters, before in zip(self.decoder, cache.letters, past, strict=True):
            x, keys_values, weights = layer(
                x, letters, cache.mask, before, need_weights=need_weights
            )
            written.append(keys_values)
            kept.append(weights)
        cache.phonemes = written
        return self.to_logits(self.decoder_norm(x)), kept

    def forward(
        self, letters: Int[Tensor, "B L"], lengths: Int[Tensor, "B"], phonemes: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T-1 num_phonemes"]:
        """Predict each phoneme from the true ones before it (teacher forcing).

        Args:
            letters: ``(B, L)`` letter indices, padded with 0.
            lengths: ``(B,)``.
            phonemes: ``(B, T)``, each row START, phonemes, END, padding.

        Returns:
            Logits ``(B, T - 1, num_phonemes)`` for ``phonemes[:, 1:]``.
        """
        return self.decode(phonemes[:, :-1], self.encode(letters, lengths))[0]

    def writer(
        self,
        letters: Int[Tensor, "B L"],
        lengths: Int[Tensor, "B"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Step:
        """Read a batch of words, to write their phonemes one after the other.

        Each step computes the new phoneme alone; the keys and values of the others are kept.

        Args:
            letters: ``(B, L)`` letter indices, padded with 0.
            lengths: ``(B,)``.
            mask: as in :meth:`encode`.

        Returns:
            A function that takes the phonemes just written ``(B,)``, at first START, and returns
            the logits of the next ones and ``(B, L)``, the attention to the letters, averaged over
            layers and heads.
        """
        cache = self.encode(letters, lengths, mask)

        def step(previous: Tensor) -> tuple[Tensor, Tensor]:
            logits, weights = self.decode(previous[:, None], cache, need_weights=True)
            cross = torch.stack([w for _, w in weights if w is not None])  # (layers, B, H, 1, L)
            return logits[:, 0], cross.mean(dim=(0, 2)).squeeze(1)

        return step

    @torch.no_grad()
    def pronounce(
        self,
        letters: Int[Tensor, "B L"],
        lengths: Int[Tensor, "B"],
        mask: Bool[Tensor, "..."] | None = None,
        *,
        max_len: int = 40,
    ) -> tuple[Int[Tensor, "B T"], Float[Tensor, "B T L"]]:
        """Write the most likely next phoneme again and again, until END (greedy decoding).

        Args:
            letters: ``(B, L)`` letter indices, padded with 0.
            lengths: ``(B,)``.
            mask: as in :meth:`encode`.
            max_len: stop after this many phonemes even without END.

        Returns:
            ``(phonemes, weights)``: ``(B, T)`` indices with END, then padding; and ``(B, T, L)``,
            the attention to the letters, averaged over layers and heads.
        """
        phonemes, alignment = greedy(self.writer(letters, lengths, mask), lengths, max_len)
        return phonemes, cast(Tensor, alignment)

    @torch.no_grad()
    def weights(
        self, letters: Int[Tensor, "B L"], lengths: Int[Tensor, "B"], phonemes: Int[Tensor, "B T"]
    ) -> LayerWeights:
        """Look at every attention while the model reads a word and predicts given phonemes.

        Args:
            letters: ``(B, L)`` letter indices, padded with 0.
            lengths: ``(B,)``.
            phonemes: ``(B, T)``, the decoder's inputs: START, then phonemes.

        Returns:
            The weights per layer and head.
        """
        cache, encoder = self._encode(letters, lengths, need_weights=True)
        _, decoder = self.decode(phonemes, cache, need_weights=True)
        before, cross = zip(*decoder, strict=True)
        return LayerWeights(*(torch.stack(list(w)) for w in (encoder, before, cross)))
