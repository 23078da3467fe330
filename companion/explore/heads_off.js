// data.said[word] lists pronunciations; data.off[i] says which of them each word gets without i.
({ words, names, rows, said, off }, x) => {
  let gone = 0;
  const says = $("p", { ariaLive: "polite" }), box = $("div");
  const draw = () => {
    grids.forEach(([first, grid]) => grid.press((i) => first + i == gone));
    const now = off[gone], changed = now.filter((i) => i).length;
    says.textContent = `${names[gone]}: ${changed} of ${words.length} words change.`;
    box.replaceChildren(table("Pronunciations", ["word", "sounds", "now", "all heads on"],
      words.map((word, i) => [word, now[i] ? "changed" : "same", said[i][now[i]], said[i][0]])));
  };
  const grids = rows.map(([label, first, buttons]) => [first, choices(label, buttons, (i) => draw((gone = first + i)))]);
  x.append(...grids.map(([, grid]) => grid.node), says, box);
  draw();
}
