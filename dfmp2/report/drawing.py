"""A molecule as a drawing: sticks and labelled balls, far ones paler, seen about along its shortest principal axis."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray

from dfmp2.covalent_radii import bonds, radius
from dfmp2.molecule import Molecule
from dfmp2.report import svg
from dfmp2.units import ANGSTROM_PER_BOHR

WIDTH, HEIGHT, MARGIN = 520.0, 340.0, 30.0
MOST_DRAWN = 300  # atoms; beyond, a drawing of this size is a blot
MOST_LABELLED = 90  # atoms; beyond, hydrogens are not labelled
SMALLEST_LABELLED = 4.0  # radius of a ball that a letter fits into
APART = 0.65  # angstrom; atoms nearer than this on paper hide each other
# Degrees about x and y, the smallest first: the first one that hides least is taken.
TILTS = sorted(
    product((0.0, 12.0, -12.0, 22.0, -22.0, 32.0, -32.0), (0.0, -10.0, 10.0, -20.0, 20.0)),
    key=lambda t: t[0] ** 2 + t[1] ** 2,
)
FAINTEST = 0.7  # opacity of the farthest atom; its label must still be readable on a dark page

# Pale fills, so that one dark ink is readable on all of them; the label says which element it is.
FILLS = {
    "H": "#f2f4f5",
    "C": "#b4bcc2",
    "N": "#a9c0f2",
    "O": "#f3a9a0",
    "F": "#b8e6a8",
    "P": "#f5c48d",
    "S": "#f1df7d",
    "Cl": "#a4dda0",
    "Br": "#d6a48f",
    "I": "#cfaee6",
    "B": "#f3c9bd",
    "Si": "#e3d1b2",
}
OTHER_FILL = "#cdd8c9"


def draw(molecule: Molecule) -> tuple[str, str]:
    """The drawing as SVG, and the caption that belongs to it."""
    shown = min(molecule.natom, MOST_DRAWN)
    positions = orient(molecule.coordinates[:shown] * ANGSTROM_PER_BOHR)
    symbols, ghost = molecule.symbols[:shown], molecule.ghost[:shown]
    joined = bonds(symbols, positions, ghost)
    points, scale = _projected(positions)
    order = np.argsort(positions[:, 2], kind="stable")
    near = _nearness(positions[:, 2])
    thin = 1.0 if scale > 26 else max(0.45, scale / 26)
    after: dict[int, list[str]] = {int(k): [] for k in order}
    rank = {int(k): place for place, k in enumerate(order)}
    for i, j in joined:  # a stick is drawn with its farther atom, so that nearer balls cover it
        far = i if rank[i] < rank[j] else j
        after[far].append(_stick(points[i], points[j], (near[i] + near[j]) / 2, thin, edged=shown <= MOST_LABELLED))
    parts = []
    labelled = shown <= MOST_LABELLED
    for k in (int(k) for k in order):
        parts += after[k]
        label = molecule.labels[k] if labelled or symbols[k] != "H" else ""
        size = min(23.0, max(4.0, scale * (0.22 + 0.26 * radius(symbols[k])))) * float(near[k]) ** 0.4
        parts.append(_ball(points[k], symbols[k], label, ghost[k], size, near[k], k + 1))
    height = float(points[:, 1].max() + MARGIN)
    return svg.drawing(WIDTH, height, f"Drawing of {molecule.formula}", parts), _caption(molecule, shown, labelled)


def orient(positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Positions about their centre, longest principal axis along x, shortest towards the reader, then tilted a little.

    Parameters
    ----------
    positions : (natom, 3) float64, angstrom

    Returns
    -------
    (natom, 3) float64, angstrom; a right-handed rotation of the input
    """
    centred = positions - positions.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=True)
    for k in range(2):  # the sign of an axis is arbitrary: its largest component is positive
        axes[k] *= math.copysign(1.0, axes[k, np.argmax(np.abs(axes[k]))])
    axes[2] = np.cross(axes[0], axes[1])
    turned = centred @ axes.T
    views: list[NDArray[np.float64]] = [turned @ _rotation(a, b).T for a, b in TILTS]
    return min(views, key=lambda view: round(_crowding(view), 6))  # of equal ones the first, which is tilted least


def _rotation(a: float, b: float) -> NDArray[np.float64]:
    """Rotation by `a` degrees about x after `b` degrees about y."""
    (ca, sa), (cb, sb) = ((math.cos(math.radians(t)), math.sin(math.radians(t))) for t in (a, b))
    about_x = np.array([[1.0, 0.0, 0.0], [0.0, ca, -sa], [0.0, sa, ca]])
    return np.asarray(about_x @ np.array([[cb, 0.0, sb], [0.0, 1.0, 0.0], [-sb, 0.0, cb]]))


def _crowding(view: NDArray[np.float64]) -> float:
    """How far atoms hide each other: the sum over pairs of what they are nearer than APART on paper, angstrom."""
    gaps = np.linalg.norm(view[:, None, :2] - view[None, :, :2], axis=2)
    return float(np.maximum(0.0, APART - gaps).sum()) - APART * len(view)


def _projected(positions: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Points on the drawing, and its scale in units per angstrom."""
    low, high = positions[:, :2].min(axis=0), positions[:, :2].max(axis=0)
    span = np.maximum(high - low, 1e-9)
    scale = float(min((WIDTH - 2 * MARGIN) / span[0], (HEIGHT - 2 * MARGIN) / span[1], 95.0))
    points = (positions[:, :2] - (low + high) / 2) * scale
    points[:, 1] *= -1.0
    return points + np.array([WIDTH / 2, span[1] * scale / 2 + MARGIN]), scale


def _nearness(depth: NDArray[np.float64]) -> NDArray[np.float64]:
    """FAINTEST for the farthest atom to 1 for the nearest; 1 for all of a flat molecule."""
    span = float(np.ptp(depth))
    if span < 0.5:
        return np.ones(len(depth))
    return np.asarray(FAINTEST + (1.0 - FAINTEST) * (depth - depth.min()) / span)


def _stick(start: NDArray[np.float64], end: NDArray[np.float64], near: float, thin: float, *, edged: bool) -> str:
    at = {"x1": float(start[0]), "y1": float(start[1]), "x2": float(end[0]), "y2": float(end[1])}
    wide = svg.element("line", cls="bond0", stroke_width=9.0 * thin, **at) if edged else ""
    return wide + svg.element("line", cls="bond", stroke_width=5.0 * thin, stroke_opacity=near, **at)


def _ball(
    point: NDArray[np.float64], symbol: str, label: str, ghost: bool, size: float, near: float, number: int
) -> str:
    x, y = float(point[0]), float(point[1])
    kind = {"cls": "atom ghost"} if ghost else {"cls": "atom", "fill": FILLS.get(symbol, OTHER_FILL)}
    title = f"{number} {'ghost ' if ghost else ''}{symbol}"
    parts = [svg.titled("circle", title, cx=x, cy=y, r=size, fill_opacity=near, stroke_opacity=near, **kind)]
    if near < 1.0 or ghost:  # what lies behind must not shine through
        parts.insert(0, svg.element("circle", cx=x, cy=y, r=size, cls="under"))
    if label and size >= SMALLEST_LABELLED:
        scale, drop = ("", 5.0) if size >= 13 else (" mid", 4.0) if size >= 9 else (" tiny", 2.8)
        cls = f"symbol{scale}{' ghostly' if ghost else ''}"
        parts.append(svg.element("text", svg.escape(label), x=x, y=y + drop, cls=cls))
    return "".join(parts)


def _caption(molecule: Molecule, shown: int, labelled: bool) -> str:
    parts = [f"{molecule.formula}, {molecule.natom} centres, turned so that they hide each other least"]
    parts.append("atoms farther away are paler; sticks join atoms nearer than 1.25 times the sum of covalent radii")
    if any(molecule.ghost):
        parts.append("ghost centres (@) have a dashed outline")
    if not labelled:
        parts.append("hydrogens carry no label")
    if shown < molecule.natom:
        parts.append(f"only the first {shown} of {molecule.natom} centres are drawn")
    return "; ".join(parts) + "."
