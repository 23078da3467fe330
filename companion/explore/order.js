// Self-attention over a word in any order, in hundredths. Letters come first, then places, so a
// score with positions is (letter, letter) + (letter, place) + (place, letter) + (place, place).
({ word, other, scores, values }, x) => {
  const n = word.length, start = word.map((_, i) => i), name = word.join("");
  let order = start, at = 0;
  const attend = (order, placed) => order.map((letter, a) => {
    const mine = placed ? [letter, n + a] : [letter];
    const seen = order.map((key, b) => {
      const its = placed ? [key, n + b] : [key];
      const sum = (f) => its.reduce((total, j) => total + f(j), 0) / 100;
      return [Math.exp(sum((j) => mine.reduce((total, i) => total + scores[i][j], 0))), values[0].map((_, f) => sum((j) => values[j][f]))];
    });
    const all = seen.reduce((total, [e]) => total + e, 0);
    return values[0].map((_, f) => seen.reduce((total, [e, v]) => total + (e * v[f]) / all, 0));
  });
  const places = $("input", { type: "checkbox", onchange: () => draw() });
  const says = $("p", { ariaLive: "polite" }), box = $("div");
  const letters = choices("Letter to move", word, (a) => draw((at = a)));
  const act = (text, change) => $("button", { type: "button", textContent: text, onclick: () => (change(), draw()) });
  const swap = (by) => () => {
    const to = at + by;
    if (!(to in order)) return;
    order = [...order];
    [order[at], order[to]] = [order[to], order[at]];
    letters.enter((at = to));
  };
  const draw = () => {
    const before = attend(start, places.checked), now = attend(order, places.checked);
    const same = order.map((letter, a) => now[a].every((v, f) => Math.abs(v - before[letter][f]) < 1e-9));
    const write = (v) => v.map((c) => c.toFixed(2).replace("-", "−")).join("\xa0\xa0");
    const moved = same.filter((s) => !s).length;
    order.forEach((letter, a) => (letters.all[a].textContent = word[letter]));
    letters.press((a) => a == at);
    says.textContent = moved ? `${moved} of ${n} letters have another vector than in ${name}.` : `Every letter has the vector that it has in ${name}.`;
    box.replaceChildren(table("Vectors of the letters", ["letter", "vector", "now", "in " + name],
      order.map((letter, a) => [word[letter], same[a] ? "same" : "changed", write(now[a]), write(before[letter])])));
  };
  x.append(letters.node, act("← left", swap(-1)), act("right →", swap(1)), act(name, () => (order = start)),
    act(other.map((i) => word[i]).join(""), () => (order = other)), $("label", {}, places, " Add positions"), says, box);
  draw();
}
