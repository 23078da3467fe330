"""Right attentions in a few lines, and wrong ones that change one step and keep every shape.

A wrong one is a subclass of :class:`Single` or :class:`Multi`: what it overrides is its mistake.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from companion import causal_mask


class Single(nn.Module):
    """Scaled dot-product attention without parameters."""

    def forward(self, query, key, value, mask=None, need_weights=True):
        weights = self.weigh(self.scores(query, key), mask)
        return self.total(weights, key, value), weights if need_weights else None

    def scores(self, query, key):
        return query @ key.mT / math.sqrt(key.shape[-1])

    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        lowest = torch.finfo(scores.dtype).min
        return scores.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0.0)

    def total(self, weights, key, value):
        return weights @ value


class Multi(nn.Module):
    """Multi-head attention; takes a mask (B, L_q, L_k)."""

    def __init__(self, d_model=16, num_heads=4, dropout=0.0):
        super().__init__()
        self.d_model, self.num_heads, self.dropout = d_model, num_heads, dropout
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        q, k, v = self.split(self.q(query)), self.split(self.k(key)), self.split(self.v(value))
        weights = self.weigh(self.scores(q, k), None if mask is None else self.per_head(mask))
        dropped = F.dropout(weights, self.dropout, self.training)
        return self.o(self.join(dropped @ v)), weights

    split_heads = staticmethod(lambda x, heads: x.unflatten(-1, (heads, -1)).transpose(1, 2))
    weigh = Single.weigh
    scores = Single.scores

    def split(self, x):
        return self.split_heads(x, self.num_heads)

    def per_head(self, mask):
        return mask[:, None]

    def join(self, x):
        return x.transpose(1, 2).flatten(2)


class MultiSelf(Multi):
    """Multi-head self-attention, causal if asked for."""

    def __init__(self, d_model=16, num_heads=4, causal=False):
        super().__init__(d_model, num_heads)
        self.causal = causal

    def forward(self, x, mask=None):
        if self.causal:
            past = self.past(x.shape[1])
            mask = past.expand(len(x), -1, -1) if mask is None else mask & past
        return super().forward(x, x, x, mask)

    def past(self, length):
        return causal_mask(length)


class CausalSingle(Single):
    """Attention that hides the future by itself."""

    def forward(self, query, key, value, mask=None, need_weights=True):
        past = self.past(query.shape[1], key.shape[1])
        return super().forward(
            query, key, value, past if mask is None else mask & past, need_weights
        )

    def past(self, q_len, k_len):
        return causal_mask(q_len, k_len)


class Quiet(nn.Module):
    """The same without weights: what is wrong must be seen in the output."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, query, key, value, mask=None):
        return self.inner(query, key, value, mask)[0]


class QuietSelf(Quiet):
    def forward(self, x, mask=None):
        return self.inner(x, mask)[0]


# Wrong shapes, wrong axes.


class TransposedWeights(Single):
    def forward(self, query, key, value, mask=None):
        output, weights = super().forward(query, key, value, mask)
        return output, weights.mT


class DropoutAlwaysOn(Single):
    def total(self, weights, key, value):
        return F.dropout(weights, 0.5) @ value


class SoftmaxOverBatch(Single):
    def weigh(self, scores, mask):
        return super().weigh(scores.transpose(0, 2), mask and mask.transpose(0, 2)).transpose(0, 2)


class ScalesInPlace(Single):
    def scores(self, query, key):
        query /= math.sqrt(key.shape[-1])
        return query @ key.mT


class InvertsMaskInPlace(Single):
    def weigh(self, scores, mask):
        return super().weigh(scores, None if mask is None else mask.logical_not_().logical_not())


class SoftmaxOverQueries(Single):
    def weigh(self, scores, mask):
        return super().weigh(scores.mT, None if mask is None else mask.mT).mT


class SoftmaxOverQueriesMulti(Multi):
    def weigh(self, scores, mask):
        return super().weigh(scores.mT, None if mask is None else mask.mT).mT


class SoftmaxOverHeads(Multi):
    def weigh(self, scores, mask):
        weights = scores.softmax(1)
        return weights if mask is None else weights.masked_fill(~mask, 0.0)


class ReluForSoftmax(Single):
    def weigh(self, scores, mask):
        weights = scores.relu()
        return weights if mask is None else weights.masked_fill(~mask, 0.0)


class NegativeWeights(Single):
    def weigh(self, scores, mask):
        visible = torch.ones_like(scores) if mask is None else mask.expand_as(scores).to(scores)
        mean = visible / visible.sum(-1, keepdim=True).clamp_min(1)
        return 2 * super().weigh(scores, mask) - mean


# Wrong scores, wrong sums.


class IgnoresKeys(Single):
    def scores(self, query, key):
        return query.sum(-1, keepdim=True) * torch.arange(key.shape[1]).to(query) / 10


class IgnoresQueries(Single):
    def scores(self, query, key):
        return key.sum(-1)[:, None].expand(-1, query.shape[1], -1)


class SumsKeys(Single):
    def total(self, weights, key, value):
        return weights @ key


class ReluOfValues(Single):
    def total(self, weights, key, value):
        return weights @ value.relu()


class Unscaled(Single):
    def scores(self, query, key):
        return query @ key.mT


class TimesRoot(Single):
    def scores(self, query, key):
        return query @ key.mT * math.sqrt(key.shape[-1])


class DividesBySize(Single):
    def scores(self, query, key):
        return query @ key.mT / key.shape[-1]


class RootOfModelSize(Multi):
    def scores(self, query, key):
        return query @ key.mT / math.sqrt(self.d_model)


class CentresQueries(Single):
    def scores(self, query, key):
        return super().scores(query - query.mean(1, keepdim=True), key)


class PrefersLateKeys(Single):
    def scores(self, query, key):
        return super().scores(query, key) + torch.arange(key.shape[1]).to(key) / 5


class NumbersQueries(Single):
    def scores(self, query, key):
        return super().scores(query + torch.arange(query.shape[1]).to(query)[:, None], key)


# Wrong heads.


class ViewWithoutTranspose(Multi):
    def split(self, x):
        return x.reshape(len(x), self.num_heads, x.shape[1], -1)

    def join(self, x):
        return x.reshape(len(x), x.shape[2], -1)


class JoinsWithoutTranspose(Multi):
    def join(self, x):
        return x.reshape(len(x), x.shape[2], -1)


class ViewOfKeys(Multi):
    def forward(self, query, key, value, mask=None):
        view = self.k(key).reshape(len(key), self.num_heads, key.shape[1], -1)
        q, v = self.split(self.q(query)), self.split(self.v(value))
        weights = self.weigh(self.scores(q, view), None if mask is None else self.per_head(mask))
        return self.o(self.join(weights @ v)), weights


class ViewWithoutTransposeSelf(MultiSelf):
    split, join = ViewWithoutTranspose.split, ViewWithoutTranspose.join


class SharesWeights(Multi):
    def weigh(self, scores, mask):
        return super().weigh(scores.mean(1, keepdim=True).expand_as(scores), mask)


class FirstHeadForAll(Multi):
    def weigh(self, scores, mask):
        return super().weigh(scores, mask)[:, :1].expand_as(scores)


class NoOutputProjection(Multi):
    def __init__(self):
        super().__init__()
        self.o = nn.Identity()


# Wrong masks.


class DropsMask(Single):
    def weigh(self, scores, mask):
        if mask is not None:
            scores.masked_fill(~mask, -torch.inf)  # not assigned
        return scores.softmax(-1)


class InvertsMask(Single):
    def weigh(self, scores, mask):
        return super().weigh(scores, None if mask is None else ~mask)


class MasksQueries(Single):
    def weigh(self, scores, mask):
        return super().weigh(scores, None if mask is None else mask.mT)


class PaddingOnQueries(Multi):
    """Takes a padding mask (B, L_k), and hides rows with it."""

    def per_head(self, mask):
        return mask[:, None, :, None]


class MasksAfterSoftmax(Single):
    def weigh(self, scores, mask):
        weights = scores.softmax(-1)
        return weights if mask is None else weights.masked_fill(~mask, 0.0)


class FillsWithTinyNumber(Single):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores.masked_fill(~mask, -1e-9)).softmax(-1)


class AddsOnesAndZeros(Single):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores + mask.to(scores)).softmax(-1)


class RepeatsMaskInWrongOrder(Multi):
    def weigh(self, scores, mask):
        if mask is None:
            return super().weigh(scores, None)
        repeated = mask[:, 0].repeat(self.num_heads, 1, 1)  # (H * B), on scores that are (B * H)
        return super().weigh(scores.flatten(0, 1), repeated).view_as(scores)


class NanRows(Single):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)


class NanGradients(Single):
    def weigh(self, scores, mask):
        if mask is not None:
            scores = scores + torch.zeros_like(scores).masked_fill(~mask, -torch.inf)
        return scores.softmax(-1).nan_to_num(0.0)


class UniformRows(Single):
    def weigh(self, scores, mask):
        lowest = torch.finfo(scores.dtype).min
        return (scores if mask is None else scores.masked_fill(~mask, lowest)).softmax(-1)


class OverflowsInHalf(Single):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        return scores.masked_fill(~mask, -1e9).softmax(-1).masked_fill(~mask, 0.0)


class SeesTheFuture(CausalSingle):
    def past(self, q_len, k_len):
        return torch.ones(q_len, k_len, dtype=torch.bool)


class TransposedPast(CausalSingle):
    def past(self, q_len, k_len):
        return torch.ones(q_len, k_len, dtype=torch.bool).triu(k_len - q_len)


class StrictPast(CausalSingle):
    def past(self, q_len, k_len):
        return causal_mask(q_len, k_len).tril(k_len - q_len - 1)


class UpperLeftPast(CausalSingle):
    def past(self, q_len, k_len):
        return torch.ones(q_len, k_len, dtype=torch.bool).tril()


class SeesTheFutureSelf(MultiSelf):
    def past(self, length):
        return torch.ones(length, length, dtype=torch.bool)


# Wrong later.


class DropsMaskWithoutWeights(Single):
    def forward(self, query, key, value, mask=None, need_weights=True):
        return super().forward(query, key, value, mask if need_weights else None, need_weights)


class ReturnsDroppedWeights(Multi):
    def __init__(self):
        super().__init__(dropout=0.3)

    def weigh(self, scores, mask):
        return F.dropout(super().weigh(scores, mask), 0.3, self.training)


class ComputesInFloat32(Single):
    def total(self, weights, key, value):
        return weights.float() @ value.float()


class NaiveExp(Single):
    def weigh(self, scores, mask):
        weights = scores.exp()
        weights = weights if mask is None else weights.masked_fill(~mask, 0.0)
        return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)


class ForgetsLayer(Multi):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(16, 16)


class DetachesKeys(Multi):
    def scores(self, query, key):
        return super().scores(query, key.detach())


class Squeezes(Single):
    def total(self, weights, key, value):
        return super().total(weights, key, value).squeeze()


class FixedLength(Single):
    def scores(self, query, key):
        return super().scores(query, key) + torch.zeros(16, 16)[
            : query.shape[1], : key.shape[1]
        ].to(key)
