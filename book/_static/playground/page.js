// The word playground: reads a word, lets both models pronounce it, and shows where they look.
"use strict";

(() => {
  const MODELS = ["additive", "multi_head"];
  const LONGEST = 28; // letters of the longest word in the dictionary
  const PAUSE = 120; // ms after a key before the models run
  const ANNOUNCE = 600; // ms after the last change before a screen reader hears of it
  const KINDS = {
    cross: "cross: a phoneme looks at the letters",
    decoder: "decoder: a phoneme looks at the phonemes before it",
    encoder: "encoder: a letter looks at the letters",
  };

  const { readModel, pronounce } = globalThis.companionG2P;
  const folder = new URL(".", document.currentScript.src);
  const models = {};
  const headsOff = new Set();
  const views = {}; // by model
  let shownHead = "", input, status;

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function after(delay, action) {
    let timer;
    return (...values) => {
      clearTimeout(timer);
      timer = setTimeout(action, delay, ...values);
    };
  }

  // -----------------------------------------------------------------------------------------------------------------
  // What was typed

  function readWord(text) {
    const word = text.trim().toLowerCase().replaceAll("’", "'"), known = models.additive.letters;
    const letters = [...word], strange = [...new Set(letters)].filter((letter) => !known.includes(letter));
    if (!word) return { message: "Type a word." };
    if (/\s/.test(word)) return { message: "One word at a time, without spaces." };
    if (strange.length) {
      const list = strange.slice(0, 5).join(" ") + (strange.length > 5 ? " …" : "");
      return { message: `The models know the letters a to z and the apostrophe, but not: ${list}` };
    }
    if (letters.length > LONGEST) {
      return { message: `That is ${letters.length} letters. The longest word in the dictionary has ${LONGEST}, so the playground stops there.` };
    }
    return { word };
  }

  const spoken = (steps) =>
    steps.map((step) => step.phoneme).filter((phoneme) => phoneme !== "END").join(" ") || "nothing";

  // -----------------------------------------------------------------------------------------------------------------
  // What is shown

  const announce = after(ANNOUNCE, (text) => (status.textContent = text));

  function showMessage(message) {
    for (const { section } of Object.values(views)) section.hidden = true;
    input.setAttribute("aria-invalid", "true");
    announce(message);
  }

  function update() {
    if (!models.additive || !models.multi_head) return;
    const { word, message } = readWord(input.value);
    if (message) return showMessage(message);
    input.removeAttribute("aria-invalid");
    const answers = MODELS.map((name) => {
      const steps = pronounce(models[name], word, headsOff), { section, answer, table, note } = views[name];
      section.hidden = false;
      answer.textContent = spoken(steps);
      fillTable(table, word, steps);
      if (note) note.textContent = whatChanged(name, word, steps);
      return spoken(steps);
    });
    const off = headsOff.size ? `, with ${headsOff.size} of its heads off,` : "";
    announce(
      answers[0] === answers[1]
        ? `${word}: both models${off && ", one with heads off,"} write ${answers[0]}.`
        : `${word}: the additive model writes ${answers[0]}; the multi-head model${off} writes ${answers[1]}.`,
    );
  }

  function whatChanged(name, word, steps) {
    if (!headsOff.size) return "";
    const whole = spoken(pronounce(models[name], word));
    return whole === spoken(steps) ? "The same as with all heads." : `With all heads: ${whole}`;
  }

  function fillTable(table, word, steps) {
    const letters = [...word].map((letter) => element("th", { scope: "col" }, letter));
    const rows = steps.map(({ phoneme, weights, heads }) => {
      const cells = [...(heads[shownHead] ?? weights)].map((weight) => {
        const cell = element("td", {}, weight < 0.005 ? "" : String(Math.round(100 * weight)));
        cell.style.setProperty("--weight", weight.toFixed(3));
        return cell;
      });
      return element("tr", {}, element("th", { scope: "row" }, phoneme), ...cells);
    });
    table.tHead.replaceChildren(element("tr", {}, element("td"), ...letters));
    table.tBodies[0].replaceChildren(...rows);
    const box = table.parentElement; // wider than its place, it scrolls: let the keyboard reach it
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }

  // -----------------------------------------------------------------------------------------------------------------
  // Building the page

  function buildModel(name, title) {
    const id = `playground-${name}`;
    const answer = element("p", { class: "playground-answer" });
    const caption = element("caption", {}, "Percent of the weight that each phoneme (row) gives to each letter (column)");
    const table = element("table", {}, caption, element("thead"), element("tbody"));
    const section = element(
      "section", { "aria-labelledby": id, hidden: "" },
      element("p", { id, class: "playground-name" }, title), answer,
      element("div", { class: "playground-table", role: "group", "aria-label": `${title}: weights` }, table),
    );
    views[name] = { section, answer, table };
    return section;
  }

  function buildHeads({ numLayers, numHeads }) {
    const numbers = (count) => Array.from({ length: count }, (_, number) => number + 1);
    const ids = (kind) => numbers(numLayers).flatMap((layer) => numbers(numHeads).map((head) => `${kind} ${layer}.${head}`));
    const boxes = {};

    function turn(heads, on) {
      for (const head of heads) {
        boxes[head].checked = on;
        if (on) headsOff.delete(head);
        else headsOff.add(head);
      }
      update();
    }

    function button(text, heads, on) {
      const made = element("button", { type: "button" }, text);
      made.addEventListener("click", () => turn(heads, on));
      return made;
    }

    const groups = Object.entries(KINDS).map(([kind, meaning]) => {
      const labels = ids(kind).map((head) => {
        boxes[head] = element("input", { type: "checkbox", checked: "", "aria-label": head });
        boxes[head].addEventListener("change", () => turn([head], boxes[head].checked));
        return element("label", {}, boxes[head], head.split(" ")[1]);
      });
      const grid = element("div", { class: "playground-heads" }, ...labels);
      grid.style.setProperty("--heads", numHeads);
      return element(
        "fieldset", {}, element("legend", {}, meaning), grid,
        button(`All ${kind} heads off`, ids(kind), false), button(`All ${kind} heads on`, ids(kind), true),
      );
    });

    const choices = ids("cross").map((head) => element("option", { value: head }, `head ${head}`));
    const shown = element("select", {}, element("option", { value: "" }, "the mean over its heads"), ...choices);
    shown.addEventListener("change", () => {
      shownHead = shown.value;
      update();
    });
    return [
      element("label", { class: "playground-shown" }, "Show the weights of ", shown),
      element(
        "details", {}, element("summary", {}, "Switch heads off"),
        element("p", {}, "A ticked head is on. 2.3 is head 3 of layer 2."), ...groups),
    ];
  }

  function buildTry(mark) {
    const button = element("button", { type: "button", class: "try" }, mark.textContent);
    button.addEventListener("click", () => {
      input.value = button.textContent;
      update();
      if (!button.closest(".playground")) input.form.scrollIntoView();
    });
    mark.replaceWith(button);
  }

  function build(place) {
    input = element("input", {
      id: "playground-word", type: "text", value: "phoneme", autocomplete: "off", autocapitalize: "none",
      spellcheck: "false", "aria-describedby": "playground-status",
    });
    status = element("p", { id: "playground-status", role: "status" }, "Loading the two models, 4 MB …");
    const form = element("form", {}, element("label", { for: "playground-word" }, "An English word"), input);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      update();
    });
    input.addEventListener("input", after(PAUSE, update));
    const sections = element(
      "div", { class: "playground-models" },
      buildModel("additive", "Additive attention"), buildModel("multi_head", "Multi-head attention"));
    views.multi_head.note = element("p", { class: "playground-note" });
    views.multi_head.answer.after(views.multi_head.note);
    place.querySelector(".playground-off").remove();
    place.prepend(form);
    place.append(status, sections);
    document.querySelectorAll("span.try").forEach(buildTry);
  }

  function load(name) {
    const script = element("script", { src: new URL(`${name}.js`, folder) });
    script.addEventListener("error", () => (status.textContent = "The models could not be loaded. Is the connection there?"));
    script.addEventListener("load", () => {
      models[name] = readModel(globalThis.companionModels[name]);
      delete globalThis.companionModels[name]; // 1.3 million numbers need not be kept twice
      if (name === "multi_head") views[name].section.append(...buildHeads(models[name]));
      update();
    });
    document.head.append(script);
  }

  build(document.querySelector(".playground"));
  MODELS.forEach(load);
})();
