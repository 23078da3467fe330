"""Answers to the exercises of chapter 3."""

import math

import torch

from companion import DotProductAttention, attend
from companion.exercises import check_even_keys, check_nearest_key, check_product_attention


def product(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def nearest_key(query, keys, values):
    products = [product(query, key) for key in keys]
    return values[products.index(max(products))]


def by_cosine(query, keys, values):
    return nearest_key(query, [[x / math.hypot(*key) for x in key] for key in keys], values)


def by_absolute_product(query, keys, values):
    products = [abs(product(query, key)) for key in keys]
    return values[products.index(max(products))]


def place(query, keys, values):
    return values.index(nearest_key(query, keys, values))


def product_attention(query, key, value, mask):
    return DotProductAttention()(query, key, value, mask=mask)[0]


def append(key, extra):
    return torch.cat([key, extra.unsqueeze(-1)], dim=-1)


def even_keys(key):
    squares = key.square().sum(-1)
    return append(key, (squares.max() - squares).sqrt())


def difference_of_lengths(key):
    lengths = key.norm(dim=-1)
    return append(key, lengths.max() - lengths)


def unit_keys(key):
    return append(key / key.norm(dim=-1, keepdim=True), torch.zeros(len(key), dtype=key.dtype))


RIGHT = {
    check_nearest_key: nearest_key,
    check_product_attention: product_attention,
    check_even_keys: even_keys,
}

WRONG = [
    (check_nearest_key, lambda query, keys, values: values[0], "expected 'b', got 'a'."),
    (check_nearest_key, by_cosine, "lengths were divided out"),
    (check_nearest_key, by_absolute_product, "sign was dropped"),
    (check_nearest_key, place, "place in the list"),
    (
        check_nearest_key,
        lambda query, keys, values: max(product(query, key) for key in keys),
        "largest product itself",
    ),
    (
        check_product_attention,
        lambda query, key, value, mask: attend(query @ key.mT / 4, value, mask)[0],
        "check scale saw",
    ),
    (
        check_product_attention,
        lambda query, key, value, mask: (query @ key.mT).softmax(-1) @ value,
        "check mask_is_used saw",
    ),
    (
        check_product_attention,
        lambda query, key, value, mask: attend(
            query @ key.mT, value, None if mask is None else ~mask
        )[0],
        "check mask_polarity saw",
    ),
    (
        check_product_attention,
        lambda query, key, value, mask: (query @ key.mT).softmax(-2) @ value,
        "check queries_do_not_mix saw",
    ),
    (check_even_keys, unit_keys, "changes the scores"),
    (check_even_keys, lambda key: append(-key, key[:, 0]), "keep the first features"),
    (check_even_keys, difference_of_lengths, "Pythagoras"),
    (check_even_keys, lambda key: append(key, 0 * key[:, 0]), "lengths still differ"),
    (check_even_keys, lambda key: key, "expected a tensor"),
]
