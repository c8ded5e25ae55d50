// A molecule that is turned and measured. The drawing is in the page and stays as it is without this script, which moves
// its balls (data-atom, data-at: x right, y down, z to the reader) and sticks (data-ends) and sorts them by depth.
for (const svg of document.querySelectorAll("svg.molecule")) {
  const box = svg.viewBox.baseVal, perAngstrom = Number(svg.dataset.scale), margin = 28;
  const atoms = [], sticks = [...svg.querySelectorAll("[data-ends]")].map((node) => ({node, ends: node.dataset.ends.split(" ")}));
  for (const node of svg.querySelectorAll("[data-atom]")) {
    const at = node.dataset.at.split(" ").map(Number);
    atoms[node.dataset.atom] = {node, at, name: node.querySelector("title").textContent};
  }
  let axes = [[1, 0, 0], [0, 1, 0], [0, 0, 1]], zoom = 1, order = "", chosen = [];

  const draw = () => {
    for (const atom of atoms) atom.now = axes.map((axis) => axis[0] * atom.at[0] + axis[1] * atom.at[1] + axis[2] * atom.at[2]);
    const reach = (k) => Math.max(1, ...atoms.map((atom) => Math.abs(atom.now[k])));
    const fit = Math.min(1, (box.width / 2 - margin) / reach(0), (box.height / 2 - margin) / reach(1)) * zoom;
    const x = (atom) => (box.width / 2 + fit * atom.now[0]).toFixed(2), y = (atom) => (box.height / 2 + fit * atom.now[1]).toFixed(2);
    for (const atom of atoms) {
      atom.node.setAttribute("transform", `translate(${x(atom)} ${y(atom)}) scale(${fit.toFixed(4)})`);
      atom.node.classList.toggle("chosen", chosen.includes(atom));
      atom.depth = atom.now[2];
    }
    for (const stick of sticks) {
      const [a, b] = stick.ends.map((k) => atoms[k]);
      Object.entries({x1: x(a), y1: y(a), x2: x(b), y2: y(b)}).forEach(([name, value]) => stick.node.setAttribute(name, value));
      stick.depth = Math.min(a.depth, b.depth) - 1e-6;
    }
    const sorted = [...atoms, ...sticks].sort((a, b) => a.depth - b.depth).map((part) => part.node);
    const now = sorted.map((node) => node.dataset.atom ?? node.dataset.ends).join();
    if (now !== order) svg.append(...sorted);
    order = now;
  };
  // By angles about the vertical and the horizontal axis of the picture, radians.
  const turn = (right, down) => {
    const mixed = (one, other, angle) => {
      const [c, s, a, b] = [Math.cos(angle), Math.sin(angle), axes[one], axes[other]];
      axes[one] = a.map((value, k) => c * value + s * b[k]);
      axes[other] = b.map((value, k) => c * value - s * a[k]);
    };
    mixed(0, 2, right);
    mixed(1, 2, down);
    draw();
  };

  // --- distances, angles, torsions
  const less = (a, b) => a.at.map((value, k) => (value - b.at[k]) / perAngstrom);
  const dot = (u, v) => u.reduce((sum, value, k) => sum + value * v[k], 0);
  const cross = (u, v) => [u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]];
  const degrees = (angle) => `${(angle * 180 / Math.PI).toFixed(2)}°`;
  const measured = ([a, b, c, d]) => {
    if (!b) return a ? a.name : "";
    const [u, v] = [less(a, b), c && less(c, b)];
    if (!c) return `distance ${Math.sqrt(dot(u, u)).toFixed(4)} Å`;
    if (!d) return `angle ${degrees(Math.atan2(Math.hypot(...cross(u, v)), dot(u, v)))}`;
    const m = cross(v, less(d, c));  // y points down: in this left-handed frame a triple product has the other sign
    return `torsion ${degrees(Math.atan2(Math.sqrt(dot(v, v)) * dot(u, m), -dot(cross(u, v), m)))}`;
  };

  // --- what it is handled with
  const panel = document.createElement("div"), said = document.createElement("output"), field = document.createElement("input");
  const choose = (numbers) => {
    chosen = numbers.map((number) => atoms[number - 1]).filter(Boolean).slice(-4);
    said.textContent = measured(chosen);
    draw();
  };
  const step = Math.PI / 12;
  const moves = {
    ArrowLeft: ["←", "Turn to the left", () => turn(-step, 0)], ArrowRight: ["→", "Turn to the right", () => turn(step, 0)],
    ArrowUp: ["↑", "Turn upwards", () => turn(0, -step)], ArrowDown: ["↓", "Turn downwards", () => turn(0, step)],
    "+": ["+", "Larger", () => { zoom *= 1.25; draw(); }], "-": ["−", "Smaller", () => { zoom /= 1.25; draw(); }],
    Home: ["⟲", "As at the start", () => { axes = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]; zoom = 1; draw(); }],
  };
  for (const [sign, label, action] of Object.values(moves)) {
    const button = document.createElement("button");
    Object.assign(button, {type: "button", textContent: sign, title: label, onclick: action});
    button.setAttribute("aria-label", label);
    button.addEventListener("keydown", (event) => {
      if (!(event.key in moves)) return;
      event.preventDefault();
      moves[event.key][2]();
    });
    panel.append(button);
  }
  const label = document.createElement("label");
  label.append("Measure atoms ", field);
  Object.assign(field, {type: "text", size: 9, placeholder: "1 2 3", oninput: () => choose(field.value.match(/\d+/g) ?? [])});
  panel.className = "handles";
  panel.append(label, said);
  svg.after(panel);

  let last = null, moved = 0;
  svg.addEventListener("pointerdown", (event) => {
    [last, moved] = [event, 0];
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!last) return;
    const [dx, dy] = [event.clientX - last.clientX, event.clientY - last.clientY];
    moved += Math.abs(dx) + Math.abs(dy);
    last = {target: last.target, clientX: event.clientX, clientY: event.clientY};
    turn(dx / 120, dy / 120);
  });
  svg.addEventListener("pointercancel", () => { last = null; });
  svg.addEventListener("pointerup", () => {
    const atom = last && moved < 4 && last.target.closest("[data-atom]");
    last = null;
    if (!atom) return;
    const number = String(Number(atom.dataset.atom) + 1), before = field.value.match(/\d+/g) ?? [];
    field.value = (before.length < 4 ? [...before, number] : [number]).join(" ");
    choose(field.value.split(" "));
  });
}
