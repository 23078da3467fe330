"""What the explorers write: the same every time, small, escaped, and with a table for no script."""

import json
import re
import subprocess
import sys

import pytest
import torch
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st

from companion import SelfAttention, explore, g2p, recurrence, sinusoidal_encoding
from companion.explore import (
    Explorer,
    explore_gradient_decay,
    explore_heads_off,
    explore_order,
    explore_scale,
    explore_weights,
)
from companion.g2p.heads import Head, all_heads, heads_off
from companion.g2p.lexicon import END
from companion.g2p.transformer import TransformerG2P

WEIGHTS = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]])
NASTY = ["<b>", "\"'&", "", "</script>", "a\nb", "\u2028", "\ud800", "😀", "$\\", "<!--"]


def random_weights(*shape: int, sharpness: float = 1.0) -> torch.Tensor:
    scores = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return (sharpness * scores).softmax(dim=-1)


def html_of(explorer: explore.Explorer) -> str:
    return explorer._repr_html_()


def weight(explorer: explore.Explorer) -> int:
    return len(html_of(explorer).encode())


def soup(explorer: explore.Explorer) -> BeautifulSoup:
    return BeautifulSoup(html_of(explorer), "html.parser")


def data_of(explorer: explore.Explorer) -> dict:
    return json.loads(soup(explorer).select_one('script[type="application/json"]').string)


def cells(explorer: explore.Explorer) -> list[list[str]]:
    rows = soup(explorer).select("details table tr")
    return [[cell.get_text() for cell in row.select("th, td")] for row in rows]


def percents(explorer: explore.Explorer) -> list[int]:
    bits = "".join(f"{ord(letter) - 63:06b}" for letter in data_of(explorer)["w"])
    return [len(ones) for ones in bits.split("0")[:-1]]


@pytest.fixture(scope="module")
def model() -> g2p.TransformerG2P:
    torch.manual_seed(0)
    model = g2p.TransformerG2P(2, d_model=16, num_layers=2, d_feedforward=16).double().eval()
    model.to_logits.bias.data[END] += 1  # untrained, it would write on and on
    return model


@pytest.fixture(scope="module")
def every(model) -> dict[str, explore.Explorer]:
    decay = {"GRU": 0.6 ** torch.arange(51), "LSTM": 0.9 ** torch.arange(51)}
    return {
        "weights": explore_weights(random_weights(4, 7, 8), "ABCDEFG", "phonemes"),
        "decay": explore_gradient_decay(decay),
        "scale": explore_scale(),
        "order": explore_order(),
        "heads": explore_heads_off(model, ["note", "phoneme"]),
    }


def test_text_names_each_querys_strongest_key():
    assert repr(explore_weights(WEIGHTS, ["a", "<"], ["x", "", "z"])) == (
        "Attention weights of 2 queries over 3 keys: 'x', '', 'z'\n'a' → '' 75 %\n'<' → nothing"
    )


def test_text_names_each_head():
    weights = torch.stack([torch.eye(2), torch.eye(2).flip(0)])
    assert repr(explore_weights(weights, "ab", heads=["same", "other"])).splitlines()[1:] == [
        "same:",
        "  'a' → 'a' 100 %",
        "  'b' → 'b' 100 %",
        "other:",
        "  'a' → 'b' 100 %",
        "  'b' → 'a' 100 %",
    ]


def test_table_has_every_weight():
    assert cells(explore_weights(WEIGHTS, "ab", "xyz")) == [
        ["query", "x", "y", "z"],
        ["a", "25", "75", "0"],
        ["b", "0", "0", "0"],
    ]
    two = explore_weights(torch.stack([WEIGHTS, WEIGHTS]), "ab", "xyz")
    names = [row[0] for row in cells(two)[1:]]
    assert names == ["head 1: a", "head 1: b", "head 2: a", "head 2: b"]


def test_table_of_many_weights_has_the_strongest():
    weights = random_weights(2, 20, 20, sharpness=3)
    weights[:, 0] = torch.tensor([0.6, 0.3, 0.1] + [0] * 17)
    weights[1, 0, :2] = torch.tensor([0.2, 0.7])
    weights[:, 1] = 0
    table = cells(explore_weights(weights, "abcdefghijklmnopqrst"))
    assert table[1:3] == [["a", "b 50, a 40, c 10"], ["b", ""]]
    assert len(table) == 21
    assert "mean over the heads" in soup(explore_weights(weights, "a" * 20)).caption.string


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 9), st.floats(0, 30))
def test_page_holds_the_rounded_weights(heads, queries, keys, sharpness):
    weights = random_weights(heads, queries, keys, sharpness=sharpness)
    explorer = explore_weights(weights, "q" * queries, "k" * keys)
    assert percents(explorer) == (100 * weights).round().flatten().int().tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_floating_dtype(dtype):
    weights = random_weights(40, 40).to(dtype).requires_grad_()
    assert len(percents(explore_weights(weights, "x" * 40))) == 1600
    assert weights.grad is None


def test_input_is_left_alone():
    weights = random_weights(3, 3)
    before = weights.clone()
    explore_weights(weights, "abc")
    assert torch.equal(weights, before)


def test_any_token_is_shown_and_escaped():
    explorer = explore_weights(torch.eye(len(NASTY)), NASTY, title="<i>&")
    head, *rows = cells(explorer)
    expected = [*NASTY[:2], '""', *NASTY[3:5], '"\\u2028"', "�", *NASTY[7:]]
    assert head[1:] == [row[0] for row in rows] == data_of(explorer)["q"] == expected
    page = soup(explorer)
    assert page.figcaption.string == "<i>&"
    assert page.select("b, i") == []
    assert len(page.select("script")) == 2
    html_of(explorer).encode()


def test_names_are_escaped_in_the_data():
    explorer = explore_weights(torch.eye(1)[None], "a", heads=["</script><b>"])
    assert data_of(explorer)["h"] == ["</script><b>"]
    assert html_of(explorer).count("</script>") == 2


@pytest.mark.parametrize("name", ["weights", "decay", "scale", "order", "heads"])
class TestEvery:
    def test_is_small(self, every, name):
        assert weight(every[name]) <= 10_000

    def test_asks_for_nothing(self, every, name):
        markup = html_of(every[name]).replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|\bsrc=|@import|url\(|\bimport\b|fetch|\bhref", markup)

    def test_needs_no_ids(self, every, name):
        page = soup(every[name])
        assert page.select("[id], [for], [aria-labelledby]") == []

    def test_table_is_open_before_the_script_runs(self, every, name):
        page = soup(every[name])
        assert page.details.has_attr("open")
        assert len({len(row) for row in cells(every[name])}) == 1
        assert page.select_one("figure > div").contents == []

    def test_has_text(self, every, name):
        first, *rest = repr(every[name]).splitlines()
        assert len(first) > 10
        assert rest


def test_same_content_same_html():
    once = explore_weights(WEIGHTS, "ab", "xyz")
    assert html_of(once) == html_of(explore_weights(WEIGHTS.double(), ["a", "b"], "xyz"))
    # In another process, where hashes and the order of sets differ.
    names = ("explore_gradient_decay", "explore_order", "explore_scale")
    script = f"""
from companion import explore
print(*(getattr(explore, name)()._repr_html_() for name in {names}))
"""
    again = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert again.strip() == " ".join(html_of(getattr(explore, name)()) for name in names)


def test_other_content_other_mark():
    def mark(title, weights=WEIGHTS):
        return soup(explore_weights(weights, "ab", "xyz", title=title)).figure["data-explore"]

    assert mark("a") == mark("a")
    assert len({mark("a"), mark("b"), mark("a", WEIGHTS.flip(1)), mark("a", WEIGHTS.flip(0))}) == 4


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 10.0])
def test_largest_input_weighs_at_most_30_kb(sharpness):
    weights = random_weights(16, 40, 40, sharpness=sharpness)
    tokens = [f"word{n}" for n in range(40)]
    assert 10_000 < weight(explore_weights(weights, tokens)) <= 30_000


@pytest.mark.parametrize(
    ("shape", "queries", "keys"), [((17, 2, 2), 2, 2), ((41, 2), 41, 2), ((2, 41), 2, 41)]
)
def test_larger_input_is_refused(shape, queries, keys):
    with pytest.raises(ValueError, match=r"at most 16 heads of 40 queries and 40 keys.*slice"):
        explore_weights(random_weights(*shape), "q" * queries, "k" * keys)


def test_long_names_are_refused():
    with pytest.raises(ValueError, match=r"weighs .* bytes, and at most 30,000 .* shorter tokens"):
        explore_weights(random_weights(2, 2), ["x" * 9000, "y" * 9000])


BAD_WEIGHTS = {
    "wrong shape": (torch.eye(3), r"\(2, 2\) as the tokens are, not empty, got \(3, 3\)"),
    "batch": (torch.eye(2)[None, None], r"got \(1, 1, 2, 2\); of a batch, give one item"),
    "vector": (torch.ones(2), r"got \(2,\)"),
    "no head": (torch.ones(0, 2, 2), "not empty"),
    "NaN": (torch.tensor([[1.0, 0], [torch.nan, 1]]), "must be finite"),
    "infinite": (torch.tensor([[1.0, 0], [torch.inf, 0]]), "must be finite"),
    "negative": (torch.tensor([[1.5, -0.5], [0, 1]]), "must not be negative, got -0.5"),
    "scores": (torch.tensor([[0.5, 0.5], [0.2, 0.7]]), "query 1 in head 0 sum to 0.9: softmax"),
    "over queries": (torch.tensor([[0.9, 0.5], [0.1, 0.5]]), "over the keys, the last axis"),
}


@pytest.mark.parametrize(("weights", "message"), BAD_WEIGHTS.values(), ids=BAD_WEIGHTS)
def test_weights_that_are_none(weights, message):
    with pytest.raises(ValueError, match=message):
        explore_weights(weights, "ab")


@pytest.mark.parametrize(
    ("weights", "tokens", "message"),
    [
        ([[1.0]], "a", "weights must be a floating tensor, got list"),
        (torch.eye(1, dtype=torch.int64), "a", "got torch.int64"),
        (torch.eye(1), [1], "query_tokens must be strings, got int"),
    ],
)
def test_types_that_are_refused(weights, tokens, message):
    with pytest.raises(TypeError, match=message):
        explore_weights(weights, tokens)


def test_heads_are_named_one_by_one():
    with pytest.raises(ValueError, match="heads must name 2 heads, got 1"):
        explore_weights(torch.eye(1).expand(2, 1, 1), "a", heads=["one"])


def test_keys_default_to_the_queries():
    assert data_of(explore_weights(torch.eye(2), "ab"))["k"] == ["a", "b"]


def test_import_adds_the_standard_library_alone():
    script = """
import sys, companion
old = set(sys.modules)
import companion.explore
print(*sys.modules.keys() - old)
"""
    new = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert {name.split(".")[0] for name in new} <= {"companion"} | sys.stdlib_module_names
    assert "companion.g2p" not in new


def test_decay_follows_the_formulas():
    rows = {row[0]: float(row[1]) for row in cells(explore_gradient_decay(max_lag=20))[1:]}
    assert rows["spectral radius 0.9"] == pytest.approx(0.9**20, rel=0.05)
    assert rows["forget bias 0.0"] == pytest.approx(0.5**20, rel=0.05)


def test_decay_of_one_number_is_what_is_measured():
    def one_number(x):  # the state of chapter 1, without a tanh
        states = [x[:, 0]]
        for t in range(1, x.shape[1]):
            states.append(0.9 * states[-1] + x[:, t])
        return torch.stack(states, dim=1)

    measured = {"0.9": recurrence.gradient_by_lag(one_number, trials=4)}
    rows = {row[0]: row[1] for row in cells(explore_gradient_decay(measured))[1:]}
    assert rows["0.9"] == "0.005"
    assert rows["spectral radius 0.9"] == "0.0052"
    data = data_of(explore_gradient_decay(measured))
    assert data["measured"]["0.9"] == [round(-0.0457574906 * lag, 2) for lag in range(0, 51, 5)]


@pytest.mark.parametrize(
    ("curve", "message"),
    [
        (torch.ones(50), r"measured\['x'\] must hold lags 0 to 50, got the shape \(50,\)"),
        (torch.ones(51, 2), r"got the shape \(51, 2\)"),
        (torch.zeros(51), "must be positive and finite"),
        (torch.full((51,), torch.nan), "must be positive and finite"),
    ],
)
def test_decay_refuses_curves(curve, message):
    with pytest.raises(ValueError, match=message):
        explore_gradient_decay({"x": curve})


def test_decay_refuses_lags():
    with pytest.raises(ValueError, match="multiple of 5 up to 1000, got 7"):
        explore_gradient_decay(max_lag=7)
    with pytest.raises(ValueError, match="max_lag must be at least 1"):
        explore_gradient_decay(max_lag=0)


def test_scale_agrees_with_autograd():
    data = data_of(explore_scale())
    scores = torch.tensor(data["scores"], dtype=torch.float64)
    for query, slopes in zip(scores, data["slopes"], strict=True):
        for factor, shown in zip([*(2 ** (p / 2) for p in range(2, 11)), 1], slopes, strict=True):
            jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), factor * query)
            slope = torch.linalg.matrix_norm(jacobian, ord=2).item()
            assert float(shown) == pytest.approx(slope, rel=0.06, abs=1e-12)


def test_scale_says_what_chapter_4_says():
    rows = {row[0]: [float(cell) for cell in row[1:]] for row in cells(explore_scale())[1:]}
    assert list(rows) == [f"d = {2**p}" for p in range(2, 11)]
    assert rows["d = 4"][0] == pytest.approx(0.3, abs=0.03)
    assert rows["d = 1024"][0] < 1e-4
    assert all(0.2 < scaled < 0.3 for _, scaled in rows.values())


@pytest.mark.parametrize(
    ("word", "other", "changed"),
    [("listen", "silent", 6), ("listen", "listen", 0), ("abc", "acb", 3)],
)
def test_order_changes_vectors_with_positions_alone(word, other, changed):
    _, without, placed = repr(explore_order(word, other)).splitlines()
    assert without == f"without positions: 0 of {len(word)} are changed"
    assert placed == f"with positions: {changed} of {len(word)} are changed"


def test_order_is_self_attention():
    random = torch.Generator().manual_seed(0)
    table = torch.randn(12, 8, dtype=torch.float64, generator=random)
    matrices = torch.randn(3, 8, 8, dtype=torch.float64, generator=random)
    layer = SelfAttention(8, bias=False).double()
    projections = (layer.query_projection, layer.key_projection, layer.value_projection)
    for projection, matrix in zip(projections, matrices, strict=True):
        projection.weight.data.copy_(matrix.T / 8**0.5)
    letters = table[["eilnst".index(letter) for letter in "listen"]]
    with torch.no_grad():
        alone, _ = layer(letters)
        placed, _ = layer(letters + sinusoidal_encoding(6, 8, dtype=torch.float64))
    for row, *expected in zip(cells(explore_order())[1:], alone, placed, strict=True):
        for cell, vector in zip((row[1], row[3]), expected, strict=True):
            numbers = [float(number.replace("−", "-")) for number in cell.split()]
            assert numbers == pytest.approx(vector[:3].tolist(), abs=0.03)


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (("a", "a"), ValueError, "2 to 12 letters, got 1"),
        (("a" * 13, "a" * 13), ValueError, "2 to 12 letters, got 13"),
        (("ab", "abb"), ValueError, "letters of 'ab', got 'abb'"),
        ((3, "ab"), TypeError, "word must be a string, got int"),
        (("ab", 3), TypeError, "other must be a string, got int"),
    ],
)
def test_order_refuses(words, error, message):
    with pytest.raises(error, match=message):
        explore_order(*words)


def test_heads_off_says_what_the_model_says(model):
    words, heads = ["note", "phoneme"], all_heads(model)
    explorer = explore_heads_off(model, words, groups={"two": heads[1:3]})
    data = data_of(explorer)
    for name, gone in {
        "All heads on": [],
        "Without two": heads[1:3],
        f"Without {heads[5]}": [heads[5]],
        "Without encoder 2, all heads": heads[2:4],
    }.items():
        with heads_off(model, gone):
            spoken = [" ".join(p) or "(nothing)" for p in g2p.predict(model, words).values()]
        chosen = data["off"][data["names"].index(name)]
        assert [said[i] for said, i in zip(data["said"], chosen, strict=True)] == spoken
        if len(gone) != 1:
            assert [name, *spoken] in cells(explorer)
            assert f"{name}: {', '.join(spoken)}" in repr(explorer)


def test_heads_off_offers_every_head_once(model):
    data = data_of(explore_heads_off(model, ["a"]))
    places = [first + i for _, first, names in data["rows"] for i in range(len(names))]
    buttons = [data["names"][place] for place in places]
    assert buttons == data["names"]
    assert len(buttons) == len(data["off"]) == 1 + 12 + 6
    assert {f"Without {head}" for head in all_heads(model)} < set(buttons)


def test_heads_off_changes_something(model):
    data = data_of(explore_heads_off(model, ["note", "phoneme"]))
    assert data["off"][0] == [0, 0]
    assert any(any(chosen) for chosen in data["off"])
    assert all(len(set(said)) == len(said) for said in data["said"])


def test_heads_off_leaves_the_model_alone(model):
    before = {name: p.clone() for name, p in model.named_parameters()}
    explore_heads_off(model, ["a"])
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_heads_off_refuses(model):
    with pytest.raises(ValueError, match="expected at least one word, got none"):
        explore_heads_off(model, [])
    with pytest.raises(ValueError, match="1 to 8 words, got 9"):
        explore_heads_off(model, ["a"] * 9)


def test_a_number_that_json_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        Explorer("title", "text", "", "weights.js", {"a": float("nan")})


def test_every_number_of_a_curve_is_checked():
    curve = torch.ones(51)
    curve[3] = torch.nan
    with pytest.raises(ValueError, match="must be positive and finite"):
        explore_gradient_decay({"net": curve})
    with pytest.raises(ValueError, match="a multiple of 5 up to 1000, got 10000"):
        explore_gradient_decay(max_lag=10_000)


def test_groups_of_heads_keep_their_own_names():
    model = TransformerG2P(2, d_model=4, num_layers=1, d_feedforward=4).eval()
    mine = explore_heads_off(model, ["cab"], groups={"mine": [Head("cross", 0, 0)]})
    assert "Without mine: " in repr(mine)
    assert repr(mine).endswith("of 6")
    with pytest.raises(ValueError, match=r"names that no head has, got encoder 1\.1"):
        explore_heads_off(model, ["cab"], groups={"encoder 1.1": [Head("cross", 0, 0)]})


def test_a_string_is_no_list_of_words():
    model = TransformerG2P(2, d_model=4, num_layers=1, d_feedforward=4).eval()
    with pytest.raises(TypeError, match="words must be a list of words, got the string 'cat'"):
        explore_heads_off(model, "cat")
