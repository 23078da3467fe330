"""Answers to the exercises of chapter 6."""

from companion import attend, masked_softmax, merge_heads, split_heads
from companion.exercises import check_head_contributions, check_multi_head, check_split_heads


def contributions(heads, w_output):
    blocks = w_output.T.unflatten(0, (len(heads), -1))
    return heads @ blocks


def multi_head(layers, query, key, value, mask, *, scale=2.0, split=split_heads, weigh=None):
    q = split(layers.query_projection(query), layers.num_heads)
    k = split(layers.key_projection(key), layers.num_heads)
    v = split(layers.value_projection(value), layers.num_heads)
    per_head = None if mask is None else mask[:, None]
    weights = (weigh or masked_softmax)(q @ k.mT / scale, per_head)
    return layers.output_projection(merge_heads(weights @ v)), weights


def viewed(x, num_heads):
    return x.reshape(len(x), num_heads, x.shape[1], -1)


def uniform_where_empty(scores, mask):
    return (scores if mask is None else scores.masked_fill(~mask, -1e9)).softmax(-1)


RIGHT = {
    check_split_heads: split_heads,
    check_head_contributions: contributions,
    check_multi_head: multi_head,
}

WRONG = [
    (check_split_heads, viewed, "cuts through the positions"),
    (
        check_split_heads,
        lambda x, heads: x.unflatten(-1, (-1, heads)).permute(0, 3, 1, 2),
        "every H-th feature",
    ),
    (check_split_heads, lambda x, heads: split_heads(x, heads).flip(1), "first d_head features"),
    (check_split_heads, lambda x, heads: x.unflatten(-1, (heads, -1)), "batch, heads, positions"),
    (check_split_heads, lambda x, heads: x.tolist(), "got list"),
    (
        check_head_contributions,
        lambda heads, w: heads @ w.unflatten(0, (len(heads), -1)),
        "the other way round",
    ),
    (
        check_head_contributions,
        lambda heads, w: (merge_heads(heads) @ w.T / len(heads)).expand(len(heads), -1, -1),
        "shared out evenly",
    ),
    (check_head_contributions, lambda heads, w: -contributions(heads, w), "must give the joined"),
    (check_head_contributions, lambda heads, w: merge_heads(heads) @ w.T, "expected a tensor"),
    (
        check_multi_head,
        lambda *inputs: multi_head(*inputs, scale=4.0),
        '"scale" fails',
    ),
    (check_multi_head, lambda *inputs: multi_head(*inputs, split=viewed), '"head_split" fails'),
    (
        check_multi_head,
        lambda *inputs: multi_head(*inputs, weigh=uniform_where_empty),
        '"fully_masked_rows" fails',
    ),
    (check_multi_head, lambda *inputs: multi_head(*inputs)[0], "two things"),
    (
        check_multi_head,
        lambda layers, q, k, v, mask: attend(q @ k.mT / 4, v, mask),
        "each head has its own",
    ),
]
