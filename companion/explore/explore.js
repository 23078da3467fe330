// Shared by every explorer. $ makes an element; x is the interface that explorers build with.
const $ = (tag, props, ...children) => {
  const e = document.createElement(tag);
  for (const k in props) k in e ? (e[k] = props[k]) : e.setAttribute(k, props[k]);
  e.append(...children);
  return e;
};
// One row of buttons: Tab enters it once, arrows move. With `peek`, pointing shows before choosing.
const choices = (label, names, pick, peek) => {
  const press = (on) => all.forEach((b, i) => (b.ariaPressed = on(i)));
  const enter = (i) => all.forEach((b, j) => (b.tabIndex = i == j ? 0 : -1));
  const all = names.map((name, i) => $("button", {
    type: "button", textContent: name, tabIndex: i ? -1 : 0,
    onclick: () => (enter(i), pick(i)),
    onmouseenter: () => peek && peek(i),
    onkeydown: (e) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
      if (!step) return;
      e.preventDefault();
      const next = (i + step + all.length) % all.length;
      enter(next), all[next].focus(), peek && pick(next);
    },
  }));
  const group = $("div", { role: "group", ariaLabel: label, onmouseleave: () => peek && peek(-1) }, ...all);
  return { press, enter, all, node: $("div", { className: "xc" }, $("p", {}, label + ":"), group) };
};
const slider = (label, min, max, step, value, change) => {
  const text = $("span"), input = $("input", { type: "range", min, max, step, value });
  input.oninput = () => (text.textContent = input.ariaValueText = change(+input.value));
  return { node: $("label", {}, label, " ", text, input), set: input.oninput };
};
const table = (label, head, rows) => $("div", { className: "xs", tabIndex: 0, role: "group", ariaLabel: label },
  $("table", {}, $("thead", {}, $("tr", {}, ...head.map((t) => $("th", { scope: "col" }, t)))),
    $("tbody", {}, ...rows.map(([name, ...cells]) => $("tr", {}, $("th", { scope: "row" }, name),
      ...cells.map((c) => $("td", {}, c)))))));
const bar = (percent) => $("div", {}, $("i", { ariaHidden: true }, $("b", { style: `height:${percent}%` })), $("span", {}, percent));
