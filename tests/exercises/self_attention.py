"""Answers to the exercises of chapter 5."""

import math

import torch

from companion import attend, masked_softmax
from companion.exercises import check_decoder_layer, check_four_steps, check_leak_test


def four_steps(x, w_query, w_key, w_value, d=None, dim=-1, root=math.sqrt):
    query, key, value = x @ w_query.T, x @ w_key.T, x @ w_value.T
    scores = query @ key.mT / root(d or key.shape[-1])
    return scores.softmax(dim=dim) @ value


def swapped(x, w_query, w_key, w_value):
    return four_steps(x, w_key, w_query, w_value)


def without_softmax(x, w_query, w_key, w_value):
    return (x @ w_query.T) @ (x @ w_key.T).mT / math.sqrt(len(w_key)) @ (x @ w_value.T)


def decoder_layer(x, mask=None, *, diagonal=0):
    scores = x @ x.mT / math.sqrt(x.shape[-1])
    allowed = torch.ones_like(scores, dtype=torch.bool).tril(diagonal)
    return attend(scores, x, allowed if mask is None else allowed & mask)[0]


def forgets_causal_with_a_mask(x, mask=None):
    scores = x @ x.mT / math.sqrt(x.shape[-1])
    causal = torch.ones_like(scores, dtype=torch.bool).tril()
    return attend(scores, x, causal if mask is None else mask)


def ignores_the_mask(x, mask=None):
    return decoder_layer(x)


def masked_afterwards(x, mask=None):
    weights = (x @ x.mT / math.sqrt(x.shape[-1])).softmax(-1).tril()
    return (weights if mask is None else weights * mask) @ x


def nan_where_nothing_is_left(x, mask=None):
    scores = x @ x.mT / math.sqrt(x.shape[-1])
    allowed = torch.ones_like(scores, dtype=torch.bool).tril()
    allowed = allowed if mask is None else allowed & mask
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ x


def leaks(layer, x, *, ends=None):
    before = layer(x)
    for end in ends or range(1, len(x)):
        changed = torch.cat([x[:end], x[end:].flip(-1) * 3 + 1])
        if not torch.allclose(layer(changed)[:end], before[:end]):
            return True
    return False


def changes_one_input(which):
    def test(layer, x):
        changed = x.clone()
        changed[which] += 1
        end = which % len(x)
        return not torch.allclose(layer(changed)[:end], layer(x)[:end])

    return test


def changes_the_next_input(layer, x):
    for end in range(1, len(x)):
        changed = x.clone()
        changed[end] += 1
        if not torch.allclose(layer(changed)[end - 1], layer(x)[end - 1]):
            return True
    return False


def compares_everything(layer, x):
    return not torch.allclose(layer(x + 1), layer(x))


RIGHT = {
    check_four_steps: four_steps,
    check_decoder_layer: decoder_layer,
    check_leak_test: leaks,
}

WRONG = [
    (check_four_steps, lambda *args: four_steps(*args, root=lambda d: 1), "not scaled"),
    (check_four_steps, lambda *args: four_steps(*args, d=6), "root of d_model"),
    (check_four_steps, lambda *args: four_steps(*args, root=float), "divided by d_k"),
    (check_four_steps, lambda *args: four_steps(*args, dim=0), "over the queries"),
    (check_four_steps, swapped, "keys ask queries"),
    (check_four_steps, without_softmax, "softmax is missing"),
    (check_four_steps, lambda *args: -four_steps(*args), "numbers differ"),
    (check_four_steps, lambda x, q, k, v: masked_softmax(x @ q.T @ (x @ k.T).T), "expected a"),
    (
        check_decoder_layer,
        lambda x, mask=None: decoder_layer(x, mask, diagonal=x.shape[1]),
        "no_look_into_the_future",
    ),
    (
        check_decoder_layer,
        lambda x, mask=None: decoder_layer(x, mask, diagonal=1),
        "no_look_into_the_future",
    ),
    (check_decoder_layer, masked_afterwards, "no_look_into_the_future"),
    (
        check_decoder_layer,
        lambda x, mask=None: decoder_layer(x, mask, diagonal=-1),
        "a position may see itself",
    ),
    (check_decoder_layer, lambda x, mask=None: -decoder_layer(x, mask), "not query, key and"),
    (check_decoder_layer, ignores_the_mask, "mask"),
    (check_decoder_layer, forgets_causal_with_a_mask, "mask"),
    (check_decoder_layer, nan_where_nothing_is_left, "fully_masked_rows"),
    (check_leak_test, lambda layer, x: False, "without a mask"),
    (check_leak_test, lambda layer, x: True, "causal attention"),
    (check_leak_test, compares_everything, "causal attention"),
    (check_leak_test, changes_one_input(-1), "second input alone"),
    (check_leak_test, changes_one_input(0), "without a mask"),
    (check_leak_test, lambda layer, x: leaks(layer, x, ends=[5]), "second input alone"),
    (check_leak_test, changes_the_next_input, "last input alone"),
    (check_leak_test, lambda layer, x: "no", "True or False, got str"),
]
