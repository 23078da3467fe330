// A formula wider than the screen scrolls: let the keyboard reach it.
addEventListener("load", async () => {
  await window.MathJax?.startup?.promise;
  for (const formula of document.querySelectorAll("mjx-container[display]")) {
    if (formula.scrollWidth > formula.clientWidth) formula.tabIndex = 0;
  }
});
