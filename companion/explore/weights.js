// data.w holds each percent as that many ones and a zero, six bits a character from "?" on.
({ q, k, h, w }, x) => {
  const all = [], on = h.map((_, i) => i < 4);
  let ones = 0, pinned = 0, shown = 0;
  for (const c of w) for (let bits = c.charCodeAt() - 63, b = 32; b; b >>= 1) bits & b ? ones++ : (all.push(ones), (ones = 0));
  const row = (i) => all.slice((i * q.length + shown) * k.length).slice(0, k.length);
  const queries = choices("Query", q, (i) => draw((pinned = i)), (i) => draw(i < 0 ? pinned : i));
  const heads = choices("Heads", h, (i) => { on[i] = !on[i]; draw(shown); });
  const says = $("p", { ariaLive: "polite" }), box = $("div", { className: "xn" });
  const numbers = $("input", { type: "checkbox", onchange: () => box.classList.toggle("xn", !numbers.checked) });
  const draw = (i) => {
    shown = i;
    queries.press((j) => j == i);
    heads.press((j) => on[j]);
    const rows = h.map((name, j) => [name, row(j)]).filter((_, j) => on[j]);
    says.textContent = rows.map(([name, r]) => {
      const top = Math.max(...r);
      return (h[1] ? name + ": " : "") + q[i] + " → " + (top ? k[r.indexOf(top)] + " " + top + " %" : "nothing");
    }).join("; ") || "Choose a head.";
    const left = box.firstChild?.scrollLeft;
    box.replaceChildren(table("Weights over the keys", ["key", ...k], rows.map(([name, r]) => [name, ...r.map(bar)])));
    box.firstChild.scrollLeft = left;
  };
  x.append(queries.node, h[1] ? heads.node : "", says, box, $("label", {}, numbers, " Numbers (percent)"));
  draw(0);
}
