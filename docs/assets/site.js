// Tables that scroll can be reached by the Tab key, and formulas are set with KaTeX, which lies beside this file.
document.addEventListener("DOMContentLoaded", () => {
  const wrap = () => {
    document.querySelectorAll("nav.md-code__nav").forEach((part, number) => {
      part.setAttribute("aria-label", `Buttons of block ${number + 1}`);
    });
    for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code, .md-typeset div.arithmatex")) {
      if (box.scrollWidth > box.clientWidth) {
        box.tabIndex = 0;
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", "scrolls sideways");
      }
    }
  };
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll("nav.md-nav[aria-labelledby]").forEach((part, number) => {
    const title = document.getElementById(part.getAttribute("aria-labelledby"))?.textContent.trim() || "Contents";
    part.removeAttribute("aria-labelledby");
    part.setAttribute("aria-label", `${title}, part ${number + 1} of the navigation`);
  });
  for (const formula of document.querySelectorAll(".arithmatex")) {
    const text = formula.textContent.trim();
    katex.render(text.slice(2, -2), formula, { displayMode: text.startsWith("\\["), throwOnError: true });
  }
  setTimeout(wrap, 300);
  addEventListener("resize", wrap);
});
