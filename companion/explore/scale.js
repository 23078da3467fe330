// One random query: scores of variance 1, times sqrt(d) as products of d parts are, or not.
({ scores, slopes, medians }, x) => {
  let query = 0, power = 2;
  const box = $("div", { className: "xn" }), says = $("p", { ariaLive: "polite" });
  const numbers = $("input", { type: "checkbox", onchange: () => box.classList.toggle("xn", !numbers.checked) });
  const weights = (factor) => {
    const e = scores[query].map((s) => Math.exp(factor * (s - Math.max(...scores[query]))));
    return e.map((v) => Math.round((100 * v) / e.reduce((a, b) => a + b)));
  };
  const draw = () => {
    const rows = [["q·k", weights(2 ** (power / 2))], ["q·k/√d", weights(1)]];
    box.replaceChildren(table("Weights over eight random keys", ["key", 1, 2, 3, 4, 5, 6, 7, 8], rows.map(([name, r]) => [name, ...r.map(bar)])));
    says.textContent = `Slope of this softmax: ${slopes[query][power - 2]} without the scale, ${slopes[query].at(-1)} with it. `
      + `Median over 2,000 queries: ${medians[power - 2]} and ${medians.at(-1)}.`;
    pick.press((i) => i == query);
  };
  const pick = choices("Query", scores.map((_, i) => i + 1), (i) => draw((query = i)), (i) => i < 0 || draw((query = i)));
  const d = slider("Features of a vector, d =", 2, 10, 1, power, (v) => (power = v, draw(), 2 ** v));
  x.append(d.node, pick.node, box, says, $("label", {}, numbers, " Numbers (percent)"));
  d.set();
}
