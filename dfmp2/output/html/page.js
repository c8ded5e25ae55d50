"use strict";
// The headings of a sortable table become buttons; cells without a number come last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, place) => {
    const numeric = head.classList.contains("n"), text = (row) => row.cells[place].textContent;
    const compare = (a, b) => numeric ? parseFloat(text(a)) - parseFloat(text(b))
      : text(a).localeCompare(text(b), undefined, {numeric: true});
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending", rows = [...body.rows];
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const unknown = rows.filter((row) => numeric && isNaN(parseFloat(text(row))));
      const known = rows.filter((row) => !unknown.includes(row)).sort(down ? (a, b) => compare(b, a) : compare);
      body.append(...known, ...unknown);
    });
  });
}
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details.print").forEach((item) => { item.open = true; });
});
