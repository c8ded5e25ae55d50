"""A molecule as balls and sticks."""

from __future__ import annotations

import math

import numpy as np

from dfmp2.arrays import Array
from dfmp2.molecule.elements import bonds, radius
from dfmp2.molecule.molecule import Molecule
from dfmp2.output.drawings import drawing, element, line_element, text_element
from dfmp2.units import ANGSTROM_PER_BOHR

MOST_DRAWN = 300  # atoms; with more, a drawing of this size is illegible
SMALLEST_LABELLED = 6.0  # radius of a ball that has room for a letter
TILT = np.radians((12.0, -10.0))  # about x and y, so that atoms do not hide each other
SAME_DEPTH = 6  # decimals of an angstrom
FLAT = 0.5  # angstrom; a molecule no thicker than this is shown face on
# Pale fills, so that the same dark text is readable on all of them; labels identify the elements.
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


def draw_molecule(molecule: Molecule) -> str:
    """Sticks and labelled balls, seen roughly along the shortest principal axis.

    `molecule.js` can rotate them: each ball carries its number and position, each stick its two
    balls, and the drawing its scale.
    """
    width, height, margin = 520.0, 340.0, 30.0
    shown = min(molecule.natom, MOST_DRAWN)
    positions = orient(molecule.coordinates[:shown] * ANGSTROM_PER_BOHR)
    low, high = positions.min(axis=0), positions.max(axis=0)
    span = np.maximum(high - low, 1e-9)
    # Units per angstrom
    scale = float(min((width - 2 * margin) / span[0], (height - 2 * margin) / span[1], 95.0))
    below = max(span[1] * scale + 2 * margin, 0.5 * height)  # room to rotate a flat molecule
    places = (positions - (low + high) / 2) * scale * (1.0, -1.0, 1.0)
    points = places[:, :2] + (width / 2, below / 2)
    # The farthest first, so that nearer balls cover it; ties up to rounding in order of their
    # numbers.
    order = np.argsort(positions[:, 2].round(SAME_DEPTH), kind="stable").tolist()
    sticks: dict[int, list[str]] = {k: [] for k in order}
    for i, j in bonds(molecule.symbols[:shown], positions, molecule.ghost[:shown]):
        x1, y1 = points[i].tolist()
        x2, y2 = points[j].tolist()
        thick = max(2.0, min(5.0, scale / 5))
        stick = line_element(x1, y1, x2, y2, "bond", stroke_width=thick, data_ends=f"{i} {j}")
        sticks[min(i, j, key=order.index)].append(stick)
    parts = [
        part
        for k in order
        for part in (*sticks[k], _ball(molecule, k, points[k], places[k], scale))
    ]
    label = f"Drawing of {molecule.formula}, {shown} of {molecule.natom} centres"
    return drawing(width, below, label, parts, cls="molecule", data_scale=f"{scale:.6g}")


def orient(positions: Array) -> Array:
    """Positions about their centre, longest principal axis along x, shortest towards the reader,
    then tilted a little.

    Parameters
    ----------
    positions : (natom, 3) float64, angstrom

    Returns
    -------
    (natom, 3) float64, angstrom; a right-handed rotation of the input
    """
    centred = positions - positions.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=True)
    for k in range(2):  # fix the arbitrary sign of an axis: the largest component is positive
        axes[k] *= math.copysign(1.0, axes[k, np.argmax(np.abs(axes[k]))])
    axes[2] = np.cross(axes[0], axes[1])
    view = centred @ axes.T
    if np.ptp(view[:, 2]) > FLAT:
        tilt = TILT
    else:
        tilt = 0.0 * TILT
    (ca, cb), (sa, sb) = np.cos(tilt), np.sin(tilt)
    about_x = np.array([[1.0, 0.0, 0.0], [0.0, ca, -sa], [0.0, sa, ca]])
    about_y = np.array([[cb, 0.0, sb], [0.0, 1.0, 0.0], [-sb, 0.0, cb]])
    return np.asarray(view @ (about_x @ about_y).T)


def _ball(molecule: Molecule, k: int, point: Array, place: Array, scale: float) -> str:
    symbol, ghost = molecule.symbols[k], molecule.ghost[k]
    size = min(23.0, max(4.0, scale * (0.22 + 0.26 * radius(symbol))))
    if ghost:
        kind = {"cls": "atom ghost"}
    else:
        kind = {"cls": "atom", "fill": FILLS.get(symbol, OTHER_FILL)}
    parts = [element("circle", r=size, **kind)]
    if size >= SMALLEST_LABELLED:
        if size >= 13:
            small, drop = ("", 5.0)
        else:
            small, drop = (" mid", 4.0)
        parts.append(
            text_element(0, drop, molecule.labels[k], f"symbol{small}{' ghostly' if ghost else ''}")
        )
    where = {
        "transform": f"translate({point[0]:.2f} {point[1]:.2f})",
        "data_at": " ".join(f"{x:z.4f}" for x in place),
    }
    return element(
        "g", *parts, title=f"{k + 1} {'ghost ' if ghost else ''}{symbol}", data_atom=str(k), **where
    )
