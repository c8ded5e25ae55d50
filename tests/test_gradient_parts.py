"""Parts of a gradient that its value does not show: groups of amplitudes, the response where
orbitals are degenerate, and what its certificate adds up. The sums over integrals and amplitudes
are held by test_gradients and test_properties."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyscf import gto, scf
from scipy.linalg import expm

from dfmp2.errors import ConvergenceError, NumericalError
from dfmp2.gradients import amplitudes, certificate
from dfmp2.gradients import response as responses
from dfmp2.gradients.response import FockBuilder, Orbitals
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.scratch import Space
from dfmp2.integrals.metric import InverseMetric
from dfmp2.mp2.properties import Gradient, GradientCertificate
from dfmp2.options import make_options
from dfmp2.options.methods import Method
from dfmp2.scf.rotations import free_rotations
from tests.awkward import MOLECULES, mole_of
from tests.conftest import Heard
from tests.recorded import recorded_error

Array = np.ndarray[Any, np.dtype[np.float64]]


def positive(rng: Any, size: int, least: float = 0.3) -> Array:
    """A metric with these eigenvalues from `least` to 5."""
    turn = np.linalg.qr(rng.standard_normal((size, size)))[0]
    made = (turn * np.geomspace(least, 5.0, size)) @ turn.T
    return (made + made.T) / 2


# --- amplitudes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "group", "expected"),
    [(0, 2, [2, 4, 5]), (5, 2, [2, 4, 5]), (3, 1, [1, 2, 3, 4, 5])],
    ids=["memory", "disk", "disk by three"],
)
def test_amplitudes_are_made_in_groups_that_stay_in_cache(
    held: int, group: int, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orbitals of 3 x 3 amplitudes in float64; those on disk are read in whole numbers of
    groups."""
    monkeypatch.setattr(amplitudes, "AMPLITUDE_BYTES", group * 8 * 3 * 3 + 5)
    monkeypatch.setattr(amplitudes, "STREAM_BYTES", held * 8 * 3 * 4 + 7)
    b = np.random.default_rng(1).standard_normal((5, 3, 4))
    read = []
    with Space(tmp_path, 0) as space:
        stored: Any = b
        if held:
            region = space.array("b", b.size)
            region.write(0, b)
            stored = StoredTensor(region, b.shape, [(0, 5)])
        rows = amplitudes._Rows(stored, np.arange(4)[::-1], 1, single=True)
        for i0, i1, part in rows.groups():
            read.append(i1)
            np.testing.assert_array_equal(part, b[i0:i1, :, ::-1].astype(np.float32))
            assert part.dtype == np.float32
    assert read == expected


# --- the metric -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [False, True])
def test_the_inverse_of_a_metric_and_its_derivative(
    cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With eigenvalues cut: the derivative of E = sum_m x_m V^+ x'_m, by differences."""
    monkeypatch.setattr("dfmp2.integrals.metric.SOLVE_ELEMENTS", 21)
    rng = np.random.default_rng(3)
    metric = positive(rng, 9)
    if cut:
        values, vectors = np.linalg.eigh(metric)
        values[:2] = 5.0 * np.array([0.4e-12, 0.8e-12])
        metric = (vectors * values) @ vectors.T
        metric = (metric + metric.T) / 2
    made = InverseMetric(metric, 2)
    kept = np.linalg.eigh(metric)
    first = 2 if cut else 0
    whole = (kept[1][:, first:] / kept[0][first:]) @ kept[1][:, first:].T
    x, other = rng.standard_normal((2, 5, 9))
    np.testing.assert_allclose(made.apply(x.copy()), x @ whole, rtol=1e-9, atol=1e-11)
    y = rng.standard_normal((5, 9 - first))
    back = made.unfit(y.copy())
    np.testing.assert_allclose(back @ metric @ back.T, y @ y.T, rtol=1e-9, atol=1e-9)
    assert made.dropped.shape == (9, first)
    step = 1e-4 * positive(rng, 9)
    c, d = x @ whole, other @ whole
    factors = -np.einsum("mp,mq->pq", c, d)
    mixed = c.T @ (other @ made.dropped) + d.T @ (x @ made.dropped)
    mixing = made.mixing(mixed)
    if not cut:
        assert not mixing.any() and mixing.shape == (9, 9)
    else:
        factors = factors + mixing

    def energy(sign: float) -> float:
        values, vectors = np.linalg.eigh(metric + sign * step)
        inverse = (vectors[:, first:] / values[first:]) @ vectors[:, first:].T
        return float(np.einsum("mp,pq,mq->", x, inverse, other))

    # Differences of the fourth order: the second one by itself is off by 1e-6.
    slope = (8 * (energy(1) - energy(-1)) - (energy(2) - energy(-2))) / 12
    assert float(np.vdot(factors, step)) == pytest.approx(slope, rel=1e-6)


def methylene() -> Any:
    """Methylene in STO-3G."""
    return mole_of(MOLECULES["methylene"], "sto-3g")


# --- the response of the orbitals -----------------------------------------------------------------


def orbitals_of(mf: Any, cores: tuple[int, ...], virtuals: tuple[int, ...]) -> list[Orbitals]:
    """Orbitals of each spin, some of them frozen."""
    many = zip(
        np.reshape(mf.mo_coeff, (len(cores), *np.shape(mf.mo_coeff)[-2:])),
        np.reshape(mf.mo_energy, (len(cores), -1)),
        np.reshape(mf.mo_occ, (len(cores), -1)),
        cores,
        virtuals,
        strict=True,
    )
    made = []
    for coeff, energy, occ, core, last in many:
        nocc = int((occ > 0).sum())
        nvir = len(occ) - nocc
        made.append(Orbitals(coeff, energy, core, nocc - core, nvir - last, last))
    return made


def fields(integrals: Array, densities: list[Array]) -> list[Array]:
    """J of the sum less K of each, with four-centre integrals."""
    coulomb = np.einsum("mnls,ls->mn", integrals, sum(densities))
    return [coulomb - np.einsum("mlns,ls->mn", integrals, d) for d in densities]


@pytest.mark.parametrize(
    ("atoms", "charges", "charge", "count"),
    [
        ("O 0.3 0.1 0; H 0.5 0.8 0.6", None, 0, 1),
        ("O 0 0 0; H 0 0 0.97; GHOST-H 0 0 -1.1", [[0.0, 0.0, 5.0, 0.6]], 0, 1),
        ("O 0 0 0; H 0 0 0.97; GHOST-H 0.3 0 -1.1", None, 0, 0),
        ("O 0 0 0; H 0 0 0.97", [[0.0, 2.0, 2.5, 0.6]], 0, 0),
        ("C 0.1 0.2 0", None, 1, 2),
        ("N 0 0 0; N 0.3 0.2 1.1", None, -1, 1),
        ("H 0 0 0; H 0.3 0.2 0.9", None, 1, 0),
    ],
)
def test_rotations_about_an_axis_of_the_nuclei_change_no_energy(
    atoms: str, charges: Any, charge: int, count: int
) -> None:
    """Radicals in degenerate orbitals, also among ghosts and charges on the axis or beside it.

    The energy of PySCF is the same after the orbitals have turned by 0.3 along the rotation, though
    the density is not, and the response to any terms is that of the pseudoinverse of the dense
    equations."""
    rng = np.random.default_rng(23)
    mole = gto.M(atom=atoms, basis="sto-3g", charge=charge, spin=1, verbose=0)
    core = scf.hf.get_hcore(mole)
    for *place, value in charges or []:
        with mole.with_rinv_origin(place):
            core = core - value * mole.intor("int1e_rinv")
    mf = scf.UHF(mole)
    mf.get_hcore = lambda *_: core
    mf.conv_tol = 1e-13
    mf.conv_tol_grad = 1e-7
    mf.kernel()
    os = orbitals_of(mf, (0, 0), (0, 0))
    free = free_rotations(mf.mol, mf.get_hcore, os[0].coeff, [o.rotations for o in os])
    assert len(free) == count
    for k, vector in enumerate(free):
        for m, other in enumerate(free):
            assert vector @ other == pytest.approx(float(k == m), abs=1e-12)

    shapes = [(o.nvir, o.nocc) for o in os]
    first = shapes[0][0] * shapes[0][1]
    densities = [o.density for o in os]
    for vector in free:
        turned = []
        for o, x in zip(os, (vector[:first], vector[first:]), strict=True):
            x = 0.3 * x.reshape(o.nvir, o.nocc)
            generator = np.block([[np.zeros((o.nocc,) * 2), -x.T], [x, np.zeros((o.nvir,) * 2)]])
            c = (o.coeff @ expm(generator))[:, : o.nocc]
            turned.append(c @ c.T)
        assert np.abs(turned[0] + turned[1] - sum(densities)).max() > 0.01
        assert mf.energy_tot(np.array(turned)) == pytest.approx(mf.e_tot, abs=1e-11)

    t_occ = [0.1 * rng.standard_normal((mole.nao, o.nocc)) for o in os]
    t_vir = [0.1 * rng.standard_normal((mole.nao, o.nvir)) for o in os]
    nothing = [np.zeros((mole.nao,) * 2) for _ in os]
    found, residual = responses.relax(
        FockBuilder(mf), os, nothing, t_occ, t_vir, Heard(), None, free
    )
    assert residual <= 5e-11
    integrals = mole.intor("int2e")

    def image(vector: Array) -> Array:
        xs = [vector[:first].reshape(shapes[0]), vector[first:].reshape(shapes[1])]
        changes = []
        for o, x in zip(os, xs, strict=True):
            half = o.coeff[:, o.nocc :] @ x @ o.coeff[:, : o.nocc].T
            changes.append(half + half.T)
        gs = fields(integrals, changes)
        parts = []
        for o, x, g in zip(os, xs, gs, strict=True):
            gap = o.energy[o.nocc :, None] - o.energy[: o.nocc]
            parts.append((gap * x + o.coeff[:, o.nocc :].T @ g @ o.coeff[:, : o.nocc]).ravel())
        return np.concatenate(parts)

    size = sum(nvir * nocc for nvir, nocc in shapes)
    matrix = np.stack([image(row) for row in np.eye(size)], axis=1)
    right = np.concatenate(
        [
            -(t[o.nocc :] - u[: o.nocc].T).ravel() / 2
            for o, t, u in zip(os, t_occ, t_vir, strict=True)
        ]
    )
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    kept = np.abs(values) > 1e-5
    assert np.count_nonzero(~kept) == count
    expected = vectors[:, kept] @ ((vectors[:, kept].T @ right) / values[kept])
    x = np.concatenate(
        [p.relaxed[o.nocc :, : o.nocc].ravel() for o, p in zip(os, found, strict=True)]
    )
    np.testing.assert_allclose(x, expected, atol=1e-8)


def test_degenerate_and_unsolvable_responses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen orbital 1e-4 Eh from a correlated one; more iterations than allowed."""
    mole = methylene()
    mf = scf.UHF(mole).run(conv_tol=1e-12)
    os = orbitals_of(mf, (1, 1), (1, 1))
    for which, pair in (("core", (0, 1)), ("virtual", (5, 6))):
        for apart, refused in ((0.9e-4, True), (1.1e-4, False)):
            energy = os[0].energy.copy()
            energy[pair[1]] = energy[pair[0]] + apart
            o = Orbitals(os[0].coeff, energy, 1, os[0].nocc, os[0].nvir, 1)
            t = np.ones((7, 7))
            frozen = slice(0, 1) if which == "core" else slice(o.last, 7)
            correlated = slice(1, o.occupied)
            if which == "virtual":
                correlated = slice(o.occupied, o.last)
            if refused:
                with recorded_error(NumericalError):
                    responses._mixed(o, np.zeros((7, 7)), t)
            else:
                p = responses._mixed(o, np.zeros((7, 7)), t)
                gap = energy[correlated] - energy[frozen]
                np.testing.assert_allclose(p[frozen, correlated][0], 1 / (2 * gap))
    unrelaxed = [np.zeros((7, 7)) for _ in os]
    drive = [np.ones((7, o.nocc)) for o in os], [np.ones((7, o.nvir)) for o in os]
    for most, works in ((60, True), (3, False)):
        monkeypatch.setattr(responses, "MOST_CYCLES", most)
        if works:
            heard = Heard()
            responses.relax(FockBuilder(mf), os, unrelaxed, *drive, heard)
            count = int(heard.stages[0].split(" after ")[1].split()[0])
            assert 5 < count < 30
        else:
            with recorded_error(ConvergenceError):
                responses.relax(FockBuilder(mf), os, unrelaxed, *drive, Heard())


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_response_is_strong_beyond_a_quarter_along_one_rotation(sign: float) -> None:
    """In either direction; two smaller parts of the same norm are none."""
    rng = np.random.default_rng(6)
    hessian = rng.standard_normal((5, 5))
    hessian += hessian.T
    values, modes = np.linalg.eigh(hessian)
    vectors = list(np.linalg.qr(rng.standard_normal((5, 5)))[0])
    images = [hessian @ vector for vector in vectors]
    for size, warned in ((0.249, False), (0.251, True)):
        heard = Heard()
        x = sign * size * modes[:, 2] + 0.2 * modes[:, 0]
        responses._warn_of_strong_response(vectors, images, x, heard)
        assert len(heard.warnings) == warned
        if warned:
            assert f"by 0.25 along a rotation that costs {values[2]:.3f} Eh" in heard.warnings[0]


# --- sums of a certificate ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("charged", "opposite", "same", "most"),
    [
        (False, 1.3, 0.4, 1.3),
        (False, 0.4, -1.5, 1.5),
        (False, 0.3, 0.2, 1.0),
        (True, 1.3, 0.4, 1.3),
    ],
)
def test_the_certificate_of_a_gradient_by_hand(
    charged: bool, opposite: float, same: float, most: float
) -> None:
    """Torques about the centre of all positions, over the largest distance from it; grid spheres
    contribute the opposite. Restricted and in mixed precision, unrestricted and in float64."""
    rng = np.random.default_rng(23)
    molecule = MOLECULES["hypochlorous acid in a field" if charged else "chloramine"]
    on_atoms = rng.standard_normal((molecule.natom, 3))
    on_charges = rng.standard_normal((3, 3)) if charged else None
    spheres = np.array([0.3, -0.2, 0.7])
    made = Gradient(
        mp2_total_gradient=on_atoms,
        scaling="mp2",
        opposite_spin_factor=1.0,
        same_spin_factor=1.0,
        seconds=0.0,
        point_charge_gradient=on_charges,
    )
    places, forces = list(molecule.coordinates), list(on_atoms)
    if charged and molecule.point_charges is not None and on_charges is not None:
        places += list(molecule.point_charges[:, :3])
        forces += list(on_charges)
    centre = sum(places) / len(places)
    torque = spheres + sum(
        np.cross(place - centre, force) for place, force in zip(places, forces, strict=True)
    )
    extent = max(1.0, *(float(np.linalg.norm(place - centre)) for place in places))
    mole, energy, spins = mole_of(molecule), -0.4, 1
    allowed = 1e-9 + most * 2e-7
    if charged:
        energy, spins, allowed = -2.5, 2, 2.5e-9
    density = rng.standard_normal((spins, mole.nao, mole.nao))
    system: Any = SimpleNamespace(mole=mole, molecule=molecule)
    result: Any = SimpleNamespace(
        options=SimpleNamespace(
            correlation=Method("custom", "custom", opposite, same, "test"), tolerance=2e-7
        ),
        correlation_energy=energy,
        precision="fp64" if charged else "mixed",
    )
    sums: Any = SimpleNamespace(three_center=energy + 3e-3, two_center=energy - 5e-3)
    densities: Any = SimpleNamespace(relaxed_density=density)
    given = (system, result, made, densities, sums, 7e-8, 9e-9, spheres)
    electrons = (3 - spins) * float((density * mole.intor("int1e_ovlp")).sum())
    found = asdict(certificate.certify_gradient(*given))
    assert {name: value for name, value in found.items() if value is not None} == pytest.approx(
        {
            "three_center_difference": 3e-3,
            "two_center_difference": -5e-3,
            "allowed_energy": allowed,
            "electrons_difference": electrons - mole.nelectron,
            "z_vector_residual": 7e-8,
            "allowed_sum": 1e-6,
            "translation": float(np.abs(sum(forces)).max()),
            "rotation": float(np.abs(torque).max()) / extent,
            "scf_convergence_error": 9e-9,
        },
        rel=1e-10,
    )


@pytest.mark.parametrize(
    ("xc", "energy_xc", "allowed"),
    [(None, None, 2e-6), ("pbe", "hf", 2e-6), (",pz", None, 2e-5), ("pbe", ",pz", 2e-5)],
)
def test_a_slope_by_hand(
    xc: str | None, energy_xc: str | None, allowed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four energies of a quartic polynomial give its slope exactly; they are tight, and nothing is
    examined again. Either functional may jump."""
    molecule, asked = MOLECULES["chloramine"], []
    direction = certificate.check_direction(molecule)  # moves every atom
    assert np.linalg.norm(direction, axis=1).min() > 0.05
    gradient = np.random.default_rng(2).standard_normal((molecule.natom, 3))

    def energy(moved: Any, options: Any, **how: Any) -> Any:
        asked.append((options, how["start"], how["doubt_units"]))
        step = moved.coordinates - molecule.coordinates
        s = float(np.vdot(step, direction))
        np.testing.assert_allclose(step, s * direction, atol=1e-13)
        return SimpleNamespace(total_energy=-0.3 * s + 20 * s**2 - 50 * s**3 + 300 * s**4)

    monkeypatch.setattr(certificate, "mp2_energy", energy)
    wishes = {"check": True, "certify_fit": True, "stability": "full", "precision": "mixed"}
    tolerance = 1e-8 if xc is None else 1e-14
    options = make_options(
        basis="sto-3g", scf_starts=2, scf_from="x.h5", scf_conv_tol=tolerance, **wishes
    )
    proof: Any = GradientCertificate(0.0, 0.0, 1e-9, 0.0, 1e-11, 1e-6)
    reference: Any = SimpleNamespace(xc=xc, energy_xc=energy_xc, as_start=lambda origin: "there")
    found = certificate.with_slope(
        proof, molecule, options, reference, SimpleNamespace(total_gradient=gradient), Heard()
    )
    assert found.numerical_slope == pytest.approx(-0.3, rel=1e-9)
    assert found.analytic_slope == float(np.vdot(gradient, direction))
    assert found.allowed_slope == allowed
    beside = {"check": False, "certify_fit": False, "stability": "off", "precision": "fp64"}
    beside |= {"guess": "atoms", "scf_from": None, "scf_starts": 1}
    tight = replace(options, scf_conv_tol=min(tolerance, 1e-12), **beside)
    assert asked == [(tight, "there", False)] * 4
