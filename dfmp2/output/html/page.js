"use strict";
// Numbers as they are on the page (−7.7 × 10⁻⁶) and as programs read them (-7.7e-06), which is what is copied.
const RAISED = "⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹", LEVEL = "-+0123456789";
const plain = (text) => text.replace(/ × 10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)/g, (_, power) => {
  const digits = [...power].map((sign) => LEVEL[RAISED.indexOf(sign)]).join("");
  return `e${digits[0] === "-" ? "-" : "+"}${digits.replace("-", "").padStart(2, "0")}`;
}).replaceAll("−", "-");
const written = (text) => text.replace(/e([+-])0*(\d+)/g, (_, sign, power) =>
  ` × 10${[...(sign + power).replace("+", "")].map((digit) => RAISED[LEVEL.indexOf(digit)]).join("")}`).replaceAll("-", "−");
document.addEventListener("copy", (event) => {
  const chosen = String(getSelection());
  if (!chosen || plain(chosen) === chosen) return;
  event.clipboardData.setData("text/plain", plain(chosen));
  event.preventDefault();
});
// The headings of a sortable table become buttons; cells without a number come last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, place) => {
    const numeric = head.classList.contains("n"), text = (row) => plain(row.cells[place].textContent);
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

// What a link leads to is opened.
const reveal = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target) target.closest("details")?.setAttribute("open", "");
  target?.scrollIntoView();
};
window.addEventListener("hashchange", reveal);
reveal();

// Energies in the unit that is chosen, with the digits that were printed: below headings and in facts that name one.
const UNIT = /^(.*?)(^| \/ )(Eh|mEh|kJ\/mol|kcal\/mol)$/, NUMBER = /[+-]?\d+\.(\d+)(e[+-]\d+)?/g;
const choice = document.querySelector(".units select"), factors = {}, changes = [];
for (const option of choice.options) if (option.value) factors[option.textContent] = Number(option.value);

const converted = (text, factor) => written(plain(text).replace(NUMBER, (printed, digits, power) => {
  const value = Number(printed) * factor, sign = printed[0] === "+" && value >= 0 ? "+" : "";
  if (!power) return sign + value.toFixed(Math.max(0, digits.length - Math.ceil(Math.log10(factor))));
  return sign + value.toExponential(digits.length).replace(/e([+-])(\d)$/, "e$1" + "0$2");
}));
// Texts of an element with its printed value and unit, and what it is in another.
const follow = (node, change) => {
  const text = node.textContent;
  changes.push((unit) => { node.textContent = unit ? change(text, unit) : text; });
};
const named = (node, values) => {  // a heading such as "E(HF) / Eh", and what stands below it
  const [, , , unit] = UNIT.exec(node.textContent) ?? [];
  if (!unit || (unit === node.textContent && unit !== "Eh")) return;
  follow(node, (text, other) => text.slice(0, text.length - unit.length) + other);
  for (const value of values) follow(value, (text, other) => converted(text, factors[other] / factors[unit]));
};
for (const name of document.querySelectorAll(".headline dt")) named(name, [name.nextElementSibling]);
for (const table of document.querySelectorAll("table")) {
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    named(head.querySelector("button") ?? head, [...table.tBodies[0].rows].map((row) => row.cells[place]));
  });
  for (const cell of table.querySelectorAll("td")) {  // a row with its unit in a cell behind the value
    if (cell.textContent === "Eh") {
      follow(cell.previousElementSibling, (text, unit) => converted(text, factors[unit]));
      follow(cell, (_, unit) => unit);
    }
  }
}
for (const value of document.querySelectorAll(":is(dd,td) .q")) {
  if (value.textContent.endsWith(" Eh")) follow(value, (text, unit) => converted(text.slice(0, -2), factors[unit]) + unit);
}
for (const svg of document.querySelectorAll("svg[data-axis]")) {  // the vertical axis of a plot, with round numbers again
  const name = svg.querySelector(".up"), [, , , unit] = UNIT.exec(name.textContent) ?? [], group = svg.querySelector(".ticks");
  if (!unit) continue;
  const printed = [...group.childNodes], [low, high, bottom, top, left, right] = svg.dataset.axis.split(" ").map(Number);
  const part = (tag, attributes, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    made.textContent = text;
    return made;
  };
  follow(name, (text, other) => text.slice(0, text.length - unit.length) + other);
  changes.push((other) => {
    if (!other) return group.replaceChildren(...printed);
    const factor = factors[other] / factors[unit], raw = (high - low) * factor / 5, decade = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((times) => times * decade >= raw * (1 - 1e-9)) * decade, made = [];
    for (let k = Math.ceil(low * factor / step - 1e-9); k * step <= high * factor * (1 + 1e-9) + 1e-12; k += 1) {
      const y = bottom + (top - bottom) * (k * step / factor - low) / (high - low);
      made.push(part("line", {x1: left, x2: right, y1: y, y2: y, class: "grid"}));
      made.push(part("text", {x: left - 7, y: y + 4, class: "small end"}, written(String(Number((k * step).toPrecision(6))))));
    }
    group.replaceChildren(...made);
  });
}
if (changes.length) choice.closest("label").hidden = false;
choice.addEventListener("change", () => {
  const unit = choice.value && choice.selectedOptions[0].textContent;
  changes.forEach((change) => change(unit));
});
