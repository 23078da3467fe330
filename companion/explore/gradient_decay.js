// The formulas of two cells, radius^n and sigmoid(bias)^n; data.measured holds log10 every 5 steps.
({ lags, measured }, x) => {
  const X = (lag) => 44 + 266 * lag / lags, Y = (log) => 10 + 10 * (2 - Math.min(2, Math.max(-14, log)));
  const names = Object.keys(measured), power = (log, digits = 2) => (10 ** log).toPrecision(digits);
  const ns = "http://www.w3.org/2000/svg", svg = document.createElementNS(ns, "svg");
  const put = (tag, props, text) => {
    const e = document.createElementNS(ns, tag);
    for (const k in props) e.setAttribute(k, props[k]);
    e.textContent = text ?? "";
    svg.append(e);
  };
  const says = $("p", { ariaLive: "polite" });
  let radius = 0.9, bias = 1, dots = -1;
  const draw = () => {
    const logs = [Math.log10(radius), -Math.log10(1 + Math.exp(-bias))];
    svg.replaceChildren();
    for (let log = 0; log >= -12; log -= 4) {
      put("path", { d: `M44 ${Y(log)}H310`, stroke: "#8886" });
      put("text", { x: 38, y: Y(log) + 4, "text-anchor": "end" }, log ? "1e" + log : 1);
    }
    for (let lag = 0; lag <= lags; lag += lags / 5) put("text", { x: X(lag), y: 185, "text-anchor": "middle" }, Math.round(lag));
    logs.forEach((log, i) => {
      // A line ends where it leaves the picture.
      const end = Math.min(lags, (log > 0 ? 2 : -14) / (log || -1e-9));
      put("path", { d: `M44 ${Y(0)}L${X(end)} ${Y(log * end)}`, stroke: `var(--${"ab"[i]})`, "stroke-width": 3, "stroke-dasharray": i ? "7 4" : "none" });
    });
    (measured[names[dots]] || []).forEach((log, i) => log < -14 || put("circle", { cx: X(5 * i), cy: Y(log), r: 3.5, fill: "currentColor" }));
    const text = `${lags} steps back: radius ${radius.toFixed(2)} leaves ${power(lags * logs[0])} (line), forget bias ${bias.toFixed(1)} leaves ${power(lags * logs[1])} (dashes)`
      + (dots < 0 ? "." : `; measured, ${names[dots]}: ${power(measured[names[dots]].at(-1), 1)} (dots).`);
    says.textContent = text;
    svg.setAttribute("aria-label", "Gradient against the number of steps back. " + text);
    pick.press((i) => i == dots);
  };
  const pick = choices("Measured", names, (i) => draw((dots = dots == i ? -1 : i)));
  for (const [k, v] of Object.entries({ viewBox: "0 0 320 190", role: "img", fill: "currentColor", "font-size": 11 })) svg.setAttribute(k, v);
  const sliders = [
    slider("Recurrent matrix, spectral radius", 0.5, 1.5, 0.05, radius, (v) => (radius = v, draw(), v.toFixed(2))),
    slider("LSTM, forget bias", -1, 6, 0.1, bias, (v) => (bias = v, draw(), `${v.toFixed(1)}: keeps ${(100 / (1 + Math.exp(-v))).toFixed(1)} %`)),
  ];
  sliders[1].node.style.setProperty("--a", "var(--b)");
  x.append(...sliders.map((s) => s.node), names[0] ? pick.node : "", svg, says);
  sliders.map((s) => s.set());
}
