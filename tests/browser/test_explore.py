"""The explorers in a real browser: mouse, keyboard, phone, light and dark, and without scripts."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page

from companion import explore, g2p
from companion.explore import explore_weights
from companion.g2p.lexicon import END

SHOTS = Path(__file__).parents[2] / "_build/screenshots"
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Explorers</title>
<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">
<style>:root {{ color-scheme: light dark }}</style></head>
<body><main><h1>Explorers</h1>{}</main></body></html>"""
WEIGHTS = torch.tensor(
    [
        [[0.7, 0.2, 0.1, 0], [0, 0.9, 0.1, 0], [0.25, 0.25, 0.25, 0.25]],
        [[0.1, 0, 0, 0.9], [0.6, 0.4, 0, 0], [0, 0, 0, 0]],
    ]
)
SMALL = explore_weights(WEIGHTS, ["<b>", "", "😀"], ["</script>", "'\"", "a b", "\n"])


def largest() -> explore.Explorer:
    scores = torch.randn(16, 40, 40, generator=torch.Generator().manual_seed(0))
    return explore_weights((3 * scores).softmax(-1), [f"word{n}" for n in range(40)])


def heads_off() -> explore.Explorer:
    torch.manual_seed(0)
    model = g2p.TransformerG2P(4, d_model=16, num_layers=3, d_feedforward=16).double().eval()
    model.to_logits.bias.data[END] += 1  # untrained, it would write on and on
    return explore.explore_heads_off(model, ["note", "phoneme"])


@pytest.fixture(scope="module")
def every() -> dict[str, explore.Explorer]:
    return {
        "weights": SMALL,
        "the same once more": SMALL,
        "largest": largest(),
        "decay": explore.explore_gradient_decay({"GRU": 0.6 ** torch.arange(51)}),
        "scale": explore.explore_scale(),
        "order": explore.explore_order(),
        "heads": heads_off(),
    }


OpenPage = Callable[..., Page]


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[OpenPage]:
    """Open a page with explorers; in the end, nothing may have been said, failed or asked for."""
    seen: list[str] = []
    contexts = []

    def show(*explorers: explore.Explorer, width: int = 1280, **options: object) -> Page:
        path = tmp_path / "page.html"
        path.write_text(PAGE.format("".join(e._repr_html_() for e in explorers)), "utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)  # a busy machine
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", lambda request: seen.append(request.url))
        page.goto(path.as_uri())
        seen.remove(path.as_uri())
        return page

    yield show
    for context in contexts:
        context.close()
    assert [entry for entry in seen if entry != "data:,"] == []


def figure(page: Page, number: int = 0) -> Locator:
    return page.locator("figure.explore").nth(number)


def status(page: Page, number: int = 0) -> str:
    return figure(page, number).locator("[aria-live]").inner_text()


def rows(page: Page) -> list[list[str]]:
    return page.eval_on_selector_all(
        "figure > div table tr",
        "all => all.map(tr => [...tr.children].map(cell => cell.textContent))",
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_explorer(show: OpenPage, every, width: int, scheme: str) -> None:
    page = show(*every.values(), width=width, color_scheme=scheme)
    for details in ("closed", "open"):
        page.screenshot(path=SHOTS / f"explore-{width}-{scheme}-{details}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        report = Axe().run(page)
        assert report.violations_count == 0, report.generate_report()
        page.eval_on_selector_all("details", "all => all.forEach(e => e.open = true)")


@pytest.mark.parametrize("attribute", ["data-theme", "data-jp-theme-light"])
def test_dark_page_in_a_light_browser(show: OpenPage, every, attribute: str) -> None:
    page = show(*every.values())
    page.evaluate(f"document.documentElement.setAttribute('{attribute}', 'x')")
    page.add_style_tag(content=f"[{attribute}] {{ color-scheme: dark; color: #eee }}")
    page.add_style_tag(content=f"[{attribute}] body {{ background: #111 }}")
    report = Axe().run(page)
    assert report.violations_count == 0, report.generate_report()


def test_targets_are_large_enough(show: OpenPage, every) -> None:
    page = show(*every.values(), width=390, has_touch=True)
    sizes = page.eval_on_selector_all(
        "button, input, summary",
        "all => all.map(e => Math.min(e.getBoundingClientRect().width, e.offsetHeight))",
    )
    assert len(sizes) > 100
    assert min(sizes) >= 24


def test_mouse_shows_and_chooses(show: OpenPage) -> None:
    page = show(SMALL)
    assert status(page) == 'head 1: <b> → </script> 70 %; head 2: <b> → "\\n" 90 %'
    third = page.get_by_role("button", name="😀")
    third.hover()
    assert status(page) == "head 1: 😀 → </script> 25 %; head 2: 😀 → nothing"
    page.mouse.move(0, 0)  # pointing was no choice
    assert status(page).startswith("head 1: <b>")
    third.click()
    page.mouse.move(0, 0)
    assert status(page).startswith("head 1: 😀")
    assert third.get_attribute("aria-pressed") == "true"
    assert page.locator("[aria-label=Query] [aria-pressed=true]").count() == 1


def test_heads_are_compared(show: OpenPage) -> None:
    page = show(SMALL)
    shown = rows(page)
    assert shown == [
        ["key", "</script>", "'\"", "a b", '"\\n"'],
        ["head 1", "70", "20", "10", "0"],
        ["head 2", "10", "0", "0", "90"],
    ]
    page.get_by_role("button", name="head 1").click()
    assert rows(page) == [shown[0], shown[2]]
    page.get_by_role("button", name="head 2").click()
    assert status(page) == "Choose a head."


def test_bars_are_the_weights(show: OpenPage) -> None:
    page = show(SMALL)
    heights = page.eval_on_selector_all("i b", "all => all.map(b => b.offsetHeight)")
    percents = (70, 20, 10, 0, 10, 0, 0, 90)
    assert heights == [pytest.approx(0.4 * percent, abs=1) for percent in percents]


def test_numbers_on_demand(show: OpenPage) -> None:
    page = show(SMALL)
    number = page.locator("td span").first
    hidden = number.evaluate("e => getComputedStyle(e).clipPath")
    page.get_by_label("Numbers").check()
    assert hidden == "inset(50%)"
    assert number.evaluate("e => getComputedStyle(e).clipPath") == "none"


def test_keyboard(show: OpenPage) -> None:
    page = show(SMALL)
    page.keyboard.press("Tab")
    for key, token in {"ArrowRight": '""', "ArrowDown": "😀", "End": "😀"}.items():
        page.keyboard.press(key)
        assert status(page).startswith(f"head 1: {token}")
    page.keyboard.press("ArrowRight")  # round to the first
    assert status(page).startswith("head 1: <b>")
    page.keyboard.press("ArrowLeft")
    assert status(page).startswith("head 1: 😀")
    page.keyboard.press("Tab")  # one stop for all queries: now the heads
    page.keyboard.press("Space")
    assert status(page) == "head 2: 😀 → nothing"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert status(page) == "Choose a head."
    page.keyboard.press("Shift+Tab")  # back to the query that was chosen
    assert page.evaluate("document.activeElement.textContent") == "😀"


def test_tap(show: OpenPage) -> None:
    page = show(SMALL, width=390, has_touch=True)
    page.get_by_role("button", name='""').tap()
    assert status(page).startswith('head 1: "" → \'" 90 %')


def test_two_of_the_same_work_alone(show: OpenPage) -> None:
    page = show(SMALL, SMALL)
    figure(page, 1).get_by_role("button", name="😀").click()
    assert status(page, 0).startswith("head 1: <b>")
    assert status(page, 1).startswith("head 1: 😀")
    assert page.locator("[aria-live]").count() == 2


@pytest.mark.parametrize("width", [390, 1280])
def test_without_scripts_there_is_the_table(show: OpenPage, every, width: int) -> None:
    page = show(*every.values(), width=width, java_script_enabled=False)
    page.screenshot(path=SHOTS / f"explore-{width}-no-script.png", full_page=True)
    assert page.locator("table:visible").count() == len(every)
    assert page.locator("button").count() == 0
    assert figure(page).locator("tr").nth(1).inner_text().split("\t") == (
        ["head 1: <b>", "70", "20", "10", "0"]
    )


def test_table_closes_for_the_script(show: OpenPage) -> None:
    page = show(SMALL)
    assert page.locator("details table:visible").count() == 0
    page.locator("summary").click()
    assert page.locator("details table:visible").count() == 1


def slide(page: Page, number: int, value: float) -> None:
    page.locator("[type=range]").nth(number).fill(str(value))


def test_decay_computes_the_formulas(show: OpenPage) -> None:
    page = show(explore.explore_gradient_decay({"GRU": 0.6 ** torch.arange(51)}))
    assert "radius 0.90 leaves 0.0052 (line)" in status(page)
    assert "forget bias 1.0 leaves 1.6e-7 (dashes)" in status(page)
    slide(page, 0, 1.3)
    slide(page, 1, 3)
    assert "radius 1.30 leaves 5.0e+5" in status(page)
    assert "forget bias 3.0 leaves 0.088" in status(page)
    page.get_by_role("button", name="GRU").click()
    assert status(page).endswith("measured, GRU: 8e-12 (dots).")
    assert page.locator("circle").count() == 11
    assert page.locator("svg").get_attribute("aria-label").endswith(status(page))


def test_decay_slider_by_keyboard(show: OpenPage) -> None:
    page = show(explore.explore_gradient_decay())
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert "radius 0.95 leaves 0.077" in status(page)
    assert page.locator("[type=range]").first.get_attribute("aria-valuetext") == "0.95"


def test_scale_shows_the_softmax(show: OpenPage) -> None:
    explorer = explore.explore_scale()
    page = show(explorer)
    for power in (2, 6, 10):
        slide(page, 0, power)
        expected = torch.tensor(explorer.data["scores"][0], dtype=torch.float64)
        for row, factor in zip(rows(page)[1:], (2 ** (power / 2), 1), strict=True):
            percents = (100 * (factor * expected).softmax(-1)).round().int().tolist()
            assert [int(cell) for cell in row[1:]] == percents
    assert f"{explorer.data['medians'][8]} and {explorer.data['medians'][9]}" in status(page)
    assert "Features of a vector, d = 1024" in figure(page).inner_text()


def test_order_agrees_with_python(show: OpenPage) -> None:
    page = show(explore.explore_order())
    assert status(page) == "Every letter has the vector that it has in listen."
    page.get_by_role("button", name="silent").click()
    assert [row[0] for row in rows(page)[1:]] == list("silent")
    assert status(page) == "Every letter has the vector that it has in listen."
    page.get_by_label("Add positions").check()
    assert status(page) == "6 of 6 letters have another vector than in listen."
    table = {row[0]: row[1:] for row in rows(page)[1:]}
    for letter, _, _, before, now in page.eval_on_selector_all(
        "details tbody tr", "all => all.map(tr => [...tr.children].map(c => c.textContent))"
    ):
        assert table[letter][0] == "changed"
        assert [table[letter][2].split(), table[letter][1].split()] == [before.split(), now.split()]


def test_order_moves_letters(show: OpenPage) -> None:
    page = show(explore.explore_order())
    page.get_by_label("Add positions").check()
    page.get_by_role("button", name="right").press("Enter")
    page.get_by_role("button", name="right").press("Enter")
    assert [row[0] for row in rows(page)[1:]] == list("isl") + list("ten")
    page.get_by_role("button", name="e", exact=True).click()
    page.get_by_role("button", name="left").click()
    assert [row[0] for row in rows(page)[1:]] == list("isletn")
    page.get_by_role("button", name="listen").click()
    assert status(page).startswith("Every letter")


def test_heads_off_shows_what_was_computed(show: OpenPage) -> None:
    explorer = heads_off()
    page = show(explorer)
    assert status(page) == "All heads on: 0 of 2 words change."
    data = explorer.data
    changing = next(i for i, chosen in enumerate(data["off"]) if all(chosen))
    page.locator("button").nth(changing).click()
    assert status(page) == f"{data['names'][changing]}: 2 of 2 words change."
    assert page.locator("[aria-pressed=true]").count() == 1
    for row, word, said, chosen in zip(
        rows(page)[1:], data["words"], data["said"], data["off"][changing], strict=True
    ):
        assert row == [word, "changed", said[chosen], said[0]]
