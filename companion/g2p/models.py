"""The models: one encoder-decoder whose attention is a part you plug in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from companion.attention import check_dropout, check_positive
from companion.g2p.decoding import Step, greedy
from companion.g2p.lexicon import NUM_LETTERS, NUM_PHONEMES, PAD, letter_mask


@dataclass(frozen=True)
class Memory:
    """What the encoder has read.

    Attributes:
        states: ``(B, L, d_model)``, one state :math:`h_j` a letter.
        mask: ``(B, 1, L)``, True at letters, False at padding.
        summary: ``(B, d_model)``, one vector for the whole word, made from the last state that the
            recurrent network reaches in each direction.
    """

    states: Float[Tensor, "B L d_model"]
    mask: Bool[Tensor, "B 1 L"]
    summary: Float[Tensor, "B d_model"]


class RecurrentG2P(nn.Module):
    r"""Read letters with a GRU, write phonemes with a GRU, and attend from one to the other.

    The decoder's step i, with :math:`y_{i-1}` the phoneme before:

    .. math::
        c_i &= \text{attention}(s_{i-1};\, h_1 \dots h_L) \\
        s_i &= \text{GRU}([y_{i-1}, c_i],\, s_{i-1}) \\
        \text{logits}_i &= W [s_i, c_i] + b

    With ``attention=None`` the context :math:`c_i` is the summary of the whole word at every step:
    the fixed-context encoder-decoder.

    Args:
        attention: a module called as ``attention(query, key, value, mask=mask)`` that returns
            ``(output, weights)``, with queries, keys and values of ``d_model`` features; or None.
            Of the weights of several heads, the mean is returned.
        d_model: features of the encoder's and the decoder's states.
        embedding_dim: features of a letter's and of a phoneme's embedding.
        bidirectional: whether the encoder reads the word in both directions.
        dropout: probability of dropping embeddings and the decoder's output, in training.

    Raises:
        TypeError, ValueError: sizes that are not positive integers; dropout outside ``[0, 1)``; an
            attention that is no module.

    Source: Cho et al. 2014 (without attention); Bahdanau, Cho and Bengio 2015 (with).
    Chapters: 1 and 2.

    >>> from companion.g2p.lexicon import encode_words
    >>> _ = torch.manual_seed(0)
    >>> model = RecurrentG2P(d_model=8, embedding_dim=4)
    >>> phonemes, weights = model.pronounce(*encode_words(["cab", "a"]), max_len=5)
    >>> phonemes.shape, weights
    (torch.Size([2, 5]), None)
    """

    def __init__(
        self,
        attention: nn.Module | None = None,
        *,
        d_model: int = 256,
        embedding_dim: int = 64,
        bidirectional: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(d_model=d_model, embedding_dim=embedding_dim)
        check_dropout(dropout)
        if not isinstance(attention, nn.Module | None):
            raise TypeError(f"attention must be a module, got {type(attention).__name__}")
        encoder_dim = d_model * (2 if bidirectional else 1)
        self.letter_embedding = nn.Embedding(NUM_LETTERS, embedding_dim, padding_idx=PAD)
        self.encoder = nn.GRU(embedding_dim, d_model, batch_first=True, bidirectional=bidirectional)
        # Nothing reads the states when there is no attention.
        self.to_states = nn.Linear(encoder_dim, d_model) if attention is not None else nn.Identity()
        self.to_summary = nn.Linear(encoder_dim, d_model)
        self.phoneme_embedding = nn.Embedding(NUM_PHONEMES, embedding_dim, padding_idx=PAD)
        self.attention = attention
        self.decoder = nn.GRUCell(embedding_dim + d_model, d_model)
        self.to_logits = nn.Linear(2 * d_model, NUM_PHONEMES)
        self.dropout = nn.Dropout(dropout)

    def encode(self, letters: Int[Tensor, "B L"], lengths: Int[Tensor, "B"]) -> Memory:
        """Read a batch of words.

        Args:
            letters: ``(B, L)`` letter indices, padded with 0.
            lengths: ``(B,)``, letters of each word, at least 1.

        Raises:
            TypeError, ValueError: lengths that do not fit the letters.
        """
        mask = letter_mask(letters, lengths)
        embedded = self.dropout(self.letter_embedding(letters))
        packed = nn.utils.rnn.pack_padded_sequence(
            embedded, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        outputs, last = self.encoder(packed)  # last: (directions, B, d_model)
        states, _ = nn.utils.rnn.pad_packed_sequence(
            outputs, batch_first=True, total_length=letters.shape[1]
        )
        return Memory(
            states=self.to_states(states),
            mask=mask,
            summary=self.to_summary(last.transpose(0, 1).flatten(1)).tanh(),
        )

    def step(
        self, previous: Int[Tensor, "B"], state: Float[Tensor, "B d_model"], memory: Memory
    ) -> tuple[
        Float[Tensor, "B num_phonemes"], Float[Tensor, "B d_model"], Float[Tensor, "B L"] | None
    ]:
        """Write one phoneme: from the phoneme before and the state before.

        Returns:
            ``(logits, state, weights)``; weights over the letters, or None without attention.
        """
        weights = None
        if self.attention is None:
            context = memory.summary
        else:
            query = state.unsqueeze(1)  # (B, 1, d_model)
            output, weights = self.attention(query, memory.states, memory.states, mask=memory.mask)
            context, weights = output.squeeze(1), weights.flatten(1, -2).mean(dim=1)
        embedded = self.dropout(self.phoneme_embedding(previous))
        state = self.decoder(torch.cat([embedded, context], dim=-1), state)
        logits = self.to_logits(self.dropout(torch.cat([state, context], dim=-1)))
        return logits, state, weights

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
        memory = self.encode(letters, lengths)
        state, steps = memory.summary, []
        for previous in phonemes[:, :-1].unbind(dim=1):
            logits, state, _ = self.step(previous, state, memory)
            steps.append(logits)
        return torch.stack(steps, dim=1)

    def writer(self, letters: Int[Tensor, "B L"], lengths: Int[Tensor, "B"]) -> Step:
        """Read a batch of words, to write their phonemes one after the other.

        Args:
            letters: ``(B, L)`` letter indices, padded with 0.
            lengths: ``(B,)``.

        Returns:
            A function that takes the phonemes just written ``(B,)``, at first START, and returns
            the logits of the next ones and where the model looked, or None.
        """
        memory = self.encode(letters, lengths)
        state = memory.summary

        def step(previous: Tensor) -> tuple[Tensor, Tensor | None]:
            nonlocal state
            logits, state, weights = self.step(previous, state, memory)
            return logits, weights

        return step

    @torch.no_grad()
    def pronounce(
        self, letters: Int[Tensor, "B L"], lengths: Int[Tensor, "B"], *, max_len: int = 40
    ) -> tuple[Int[Tensor, "B T"], Float[Tensor, "B T L"] | None]:
        """Write the most likely next phoneme again and again, until END (greedy decoding).

        Args:
            letters: ``(B, L)`` letter indices, padded with 0.
            lengths: ``(B,)``.
            max_len: stop after this many phonemes even without END.

        Returns:
            ``(phonemes, weights)``: ``(B, T)`` indices with END, then padding; and the attention
            ``(B, T, L)`` with which each was written, or None without attention.
        """
        return greedy(self.writer(letters, lengths), lengths, max_len)
