"""Charge and spin in files: the tables on the docs page agree with what the readers accept and
reject."""

from __future__ import annotations

import inspect
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import dfmp2
from dfmp2.errors import InputError
from dfmp2.molecule.comment import statements
from dfmp2.molecule.files import read_file, read_frames, read_point_charges
from dfmp2.molecule.mol_block import Atom, MolBlock, _explained, read_mol_block, unfilled
from dfmp2.molecule.xyz import parse_text, parse_xyz, read_xyz
from tests.recorded import recorded_error

from .mol_blocks import BLOCKS, Block

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "molecule-files.md"
OH = "O 0 0 0\nH 0 0 0.97\n"


def rows_below(heading: str) -> list[tuple[str, ...]]:
    """The rows of the table below a heading of the page."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in rows]


COMMENTS = [(row[0].strip("`"), row[1]) for row in rows_below("Comments of xyz files")]


def outcome_of(comment: str) -> str:
    """The reader's interpretation of a comment, in the words of the page."""
    try:
        found = parse_xyz(f"2\n{comment}\n{OH}", file="f")
    except InputError as error:
        return f"refused: {str(error).removeprefix('f, line 2: ').removeprefix('f: ')}"
    if (found.charge_from, found.multiplicity_from) == ("default", "default"):
        assert (found.molecule.charge, found.molecule.multiplicity) == (0, 1)
        return "without"
    return f"charge {found.molecule.charge}, multiplicity {found.molecule.multiplicity}"


def test_the_page_lists_enough() -> None:
    assert len({comment for comment, _ in COMMENTS}) == len(COMMENTS) >= 60


@pytest.mark.parametrize(("comment", "said"), COMMENTS)
def test_comment(comment: str, said: str) -> None:
    outcome = outcome_of(comment)
    if said.startswith("refused"):
        assert outcome.startswith(said)
    else:
        assert outcome == said


BEFORE = "total net overall molecular molecule mol tot system formal"
BEFORE_ANY = f"{BEFORE} n num number nr state the job input"
OF_OTHERS = """nuclear core point partial atomic effective mulliken loewdin lowdin hirshfeld resp esp
chelpg npa nbo bader cm5 atom background fragment surface image probe counter electron proton
electronic metal ligand solvent site ion iron zinc oxygen"""
QUANTITIES = """transfer density contamination orbit squared method model scheme population center
centre energy gap correction component scaling constant coupling basis type penalty separation error
channels"""
SPELT = "minus plus negative positive one two three four five six"


def with_each(words: str, *forms: str) -> list[str]:
    """Comments made of the forms and each of the words."""
    return [form.format(word) for word in words.split() for form in forms]


OF_CHARGE = "charge chg chrg total_charge net_charge molecular_charge"
OF_SPIN = "multiplicity mult spin_multiplicity molecular_multiplicity spin unpaired magmom"
STATE = ("{}", "{}s", "a {} state", "A {}S State")
ANIONS = ("{}anion", "the {}-anions", "{}anionic")
CATIONS = ("{}cation", "the {}-cations", "{}cationic")
SPELLINGS = {  # outcome: comments
    "charge -4, multiplicity 1": with_each("tetra", *ANIONS),
    "charge -3, multiplicity 1": with_each("tri", *ANIONS),
    "charge -2, multiplicity 1": ["charge=2-", *with_each("di", *ANIONS)],
    "charge -1, multiplicity 1": ["total_charge=-1", "-1 charge", *with_each("mono", *ANIONS)],
    "charge 1, multiplicity 1": ["molecule charge 1", "+1 charge", *with_each("mono", *CATIONS)],
    "charge 3, multiplicity 1": with_each("tri", *CATIONS),
    "charge 4, multiplicity 1": with_each("tetra", *CATIONS),
    "charge 0, multiplicity 5": with_each("quintet", *STATE),
    "charge 0, multiplicity 6": with_each("sextet", *STATE),
    "charge 0, multiplicity 7": with_each("septet", *STATE),
    "charge 0, multiplicity 8": with_each("octet", *STATE),
    "charge 0, multiplicity 9": with_each("nonet", *STATE),
    "charge 1, multiplicity 2": ["mult:2 charge:1"],
    "charge 0, multiplicity 2": [
        *("multiplicity=2.0", "nuhf 1", "1 unpaired electron", "ms=1/2", "2s=1", "2S+1=2"),
        "magmom=1.02",
        *with_each("doublet", *STATE),
    ],
    "charge 0, multiplicity 1": [
        *with_each(OF_CHARGE, '{}="neutral"', "{}: none", "{}=zero"),
        *with_each("singlet", *STATE),
        "q=0 m=2.5",
    ],
    "charge 2, multiplicity 1": [
        *with_each("di", *CATIONS),
        *with_each(BEFORE, "{} charge 2", "{}_chrg=2", "{}-chg 2"),
        *with_each("total net mol tot molecular system overall formal i", "{}charge: 2"),
        *with_each(BEFORE_ANY, "{}_charge=2"),
        *with_each("= == : := => ->", "charge {} 2", "charge{}2", "q{}2"),
        *with_each("is of was equals", "charge {} 2"),
        *("charge equal to 2", "charge set to 2", "charge, 2", "charge (2)", "charge [2]"),
        *("charge | 2", "charge state 2", "charge number: 2", "charge total=2", "charge tot 2"),
        *("icharg = 2", "charge +2", "charge 2+", "charge 2.0", "charge 2e0", "Q=2"),
        *with_each(f"{OF_CHARGE} q icharge charge_state", '{}="2"', "{}='2'", "{}={{2}}"),
    ],
    "charge -1, multiplicity 2": [
        *with_each("/ , & ; + _ | -", "charge{}mult -1 2", "q {} m = -1, 2"),
        *("charge and spin multiplicity (-1 2)", "chg mult: -1; 2", "multiplicity/charge 2 -1"),
        *("-1 charge, doublet", "1- charged and doublet", "-1 e charge with 1 unpaired electron"),
    ],
    "charge 0, multiplicity 3": [
        *with_each("multiplicity multiplicty multip mult mul multiplet", "{}=3", "{} 3"),
        *with_each("multiplicity mult mul", "spin {} 3", "spin-{}: 3", "spin_{}=3"),
        *with_each("2s+1 2*s+1 (2s+1)", "{}=3", "{} 3"),
        *with_each("unpaired nunpaired n_unpaired nopen uhf nuhf", "{}=2", "{} 2"),
        *with_each("electron electrons spin spins e", "unpaired {}=2"),
        *with_each("magmom magnetization magnetisation", "{}=2.04", "{} -2"),
        *("magnetic moment: 2", "total magnetization = 1.96", "2S=2", "2 unpaired electrons"),
        *with_each("triplet", *STATE),
        *with_each(
            "multiplicity mult spin_multiplicity molecular_multiplicity mul 2s+1",
            '{}="3"',
            "{}='3'",
            "{}={{3}}",
        ),
        *with_each("unpaired uhf magmom nuhf n_unpaired", '{}="2"'),
    ],
    "charge 0, multiplicity 4": [
        *with_each("spin ms sz s_z s", "{}=3/2", "{}: 1.5", '{}="3/2"'),
        *with_each("quartet", *STATE),
        *("spin state 3/2", "spin quantum number 1.5", "spin number=3/2", "total spin is 3/2"),
    ],
    "refused": [
        *("charge_label=3", "charge_of_x: 1", "cell_charge=1", "point_charge=2", "charge="),
        *("charge=one", "charge+1", "charge 1.5", "charge=+1-", "charge: -", "charge: ?", "q 2"),
        *("q=1.5", "q=1 m=2", "2 multiplicity", "unpaired=-1", "magmom=1.2", "magmom=x"),
        *("spin=1/3", "spin=1/0", "spin=-1", "spin=200", "nelec=+9-", "8 electrons"),
        *with_each(OF_OTHERS, "{} charge 1", "the {} charge=1", "{} spin 1/2"),
        *with_each(OF_CHARGE, '{}="minus one"', "{}='one'"),
        *with_each(OF_SPIN, '{}="two"'),
        *with_each(SPELT, "charge {}", "charge: {}", "mult: {}", "unpaired={}"),
        *with_each("positively negatively singly doubly triply", "{} charged", "{}-charged ion"),
        *with_each("biradical diradical bi-radicals di-radical high-spin", "{} state"),
        *with_each("one two three four five six", "{} unpaired electrons"),
        *with_each("alpha beta", "n_{}=5", "n{}: 4"),
        *with_each("nelec nelectrons n_elec n_electrons electrons", "{}=10", "charge=1 {}=9"),
        *(
            "number of electrons: 10",
            "num electrons=10",
            "10 electrons",
            "charged -1",
            "charges: .5",
        ),
        *("* xyz -1 1", "*xyzfile -1 1", "$molecule -1 1", "(-1, 1) HO", "-1|1", 'charge="-1+"'),
    ],
    "without": [
        *("surface_charge=2", "+1 charge state", "2 charges", "q", "q=x", "m=2", "uhf=120"),
        *with_each("singlet doublet triplet quartet quintet sextet septet octet nonet", "{}y"),
        *("ms 0.5", "ms=0.3", "ms=1/0", "sz=x", "2s 1"),
        *with_each(QUANTITIES, "charge_{}=3", "spin-{}: 2", "{}_charge=3", "{}-spin 2"),
        *with_each("nelec nelectrons n_elec electrons", "{}=9"),
        *(
            "* xyz 0 1",
            "spin: none",
            "multiplicity: neutral",
            'energy="-76.2" date="12/05"',
            'title="2 bonds" charges="-0.4 0.4"',
        ),
    ],
}


@pytest.mark.parametrize("outcome", SPELLINGS)
def test_every_spelling_and_every_word_beside_it(outcome: str) -> None:
    for comment in SPELLINGS[outcome]:
        assert outcome_of(comment).startswith(outcome), comment


@pytest.mark.parametrize(("comment", "said"), COMMENTS)
def test_comment_with_both_options(comment: str, said: str) -> None:
    """Options win; contradictions and non-numbers are still rejected."""
    text = f"2\n{comment}\n{OH}"
    if re.search("contradict|expected a whole number", said):
        with pytest.raises(InputError):
            parse_xyz(text, file="f", charge=3, multiplicity=4)
    else:
        found = parse_xyz(text, file="f", charge=3, multiplicity=4)
        assert (found.molecule.charge, found.molecule.multiplicity) == (3, 4)
        assert (found.charge_from, found.multiplicity_from) == ("option", "option")


@pytest.mark.parametrize(
    "comment", [comment for comment, said in COMMENTS if said.startswith("refused")]
)
def test_a_refusal_names_both_spellings(comment: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_xyz(f"2\n{comment}\n{OH}", file="f")
    message = str(caught.value)
    if "contradict" in message:
        assert "keep one" in message
    else:
        assert re.search(r"write (charge|multiplicity)=", message), message
        assert re.search(r"pass (--|both as options)", message), message


def test_the_same_reader_for_frames_texts_and_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = f"2\nCharge: -1\n{OH}", f"2\nspin 2\n{OH}"
    path = tmp_path / "two.xyz"
    path.write_text(good + good.replace("-1", "+1"))
    assert [one.charge for one in read_frames(path)] == [-1, 1]
    path.write_text(good + bad)
    with recorded_error(InputError):
        read_frames(path)
    assert parse_text(good).charge == dfmp2.Molecule.from_string(good).charge == -1
    with recorded_error(InputError):
        dfmp2.Molecule.from_string(bad)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(good.encode())))
    assert read_file("-").molecule.charge == -1


@pytest.mark.parametrize(
    ("comment", "units", "stated"),
    [
        ("units=bohr", "angstrom", "bohr"),
        ("Units: au", "angstrom", "bohr"),
        ("coordinates in atomic units", "angstrom", "bohr"),
        ("geometry (Bohr) of step 3", "angstrom", "bohr"),
        ("unit=Angstrom", "bohr", "angstrom"),
        ("xtb, coords in angstrom", "bohr", "angstrom"),
        ("coordinate = a.u.", "angstrom", "bohr"),
        ("units=au", "angstrom", "bohr"),
        ("positions given in bohrs", "angstrom", "bohr"),
        ("unit: atomic_units", "angstrom", "bohr"),
        ("geometry is in Angstroms", "bohr", "angstrom"),
        ("coord are in (ang)", "bohr", "angstrom"),
    ],
)
def test_another_unit_in_the_comment_is_refused(comment: str, units: str, stated: str) -> None:
    text = f"2\n{comment}\n{OH}"
    with recorded_error(InputError):
        parse_xyz(text, file="f", units=units)
    found = parse_xyz(text, file="f", units=stated).molecule
    scale = {"bohr": 1.0, "angstrom": 1.0 / 0.529177210903}[stated]
    assert found.coordinates[1, 2] == pytest.approx(0.97 * scale, rel=1e-9)


@pytest.mark.parametrize(
    "comment",
    [
        "dipole 0.7 e bohr",
        "gradient in Eh/bohr",
        "energy units=bohr",
        "unit cell",
        "positions: Au slab",
    ],
)
def test_other_units_in_the_comment_say_nothing(comment: str) -> None:
    found = parse_xyz(f"2\n{comment}\n{OH}", file="f").molecule
    assert found.coordinates[1, 2] == pytest.approx(0.97 / 0.529177210903, rel=1e-9)


def test_charged_formulas_of_other_molecules_state_nothing() -> None:
    """SO4 2- beside another molecule; Fe2+ and Fe2 + are one and two atoms, in any spelling, beside
    ghosts, and in any column."""
    assert parse_xyz(f"2\nfrom SO4 2-\n{OH}", file="f").molecule.charge == 0
    with recorded_error(InputError):
        parse_xyz(f"2\ncharge=0 HO^-\n{OH}", file="f")
    assert parse_xyz(f"2\ncharge=-1 HO^-\n{OH}", file="f").molecule.charge == -1
    for atoms, comment in (
        ("Fe 0 0 0", "Fe2+"),
        ("Fe 0 0 0\nFe 0 0 2", "Fe2+"),
        ("26 0 0 0", "Fe2+"),
        ("FE 0 0 0\n@Fe 0 0 2", "Fe2+"),
        ("0 0 0 fe", "Properties=pos:R:3:species:S:1 Fe2+"),
    ):
        count = atoms.count("\n") + 1
        with recorded_error(InputError):
            parse_xyz(f"{count}\n{comment}\n{atoms}", file="f")


INITIAL = "Properties=species:S:1:pos:R:3:initial_charges:R:1:initial_magmoms:R:1"
RESULTS = INITIAL.replace("initial_", "")


@pytest.mark.parametrize(
    ("comment", "oxygen", "hydrogen", "state"),
    [
        (INITIAL, "-7.5d-1 1.5", "-2.5D-1 0.5", (-1, 3)),
        (INITIAL, "-0.5 1", "0.5 -1", (0, 1)),
        (INITIAL, "0 -2.5", "1 0.5", (1, 3)),
        (f"charge=1 {INITIAL}", "-2 0", "0 0", None),
        (INITIAL, "-0.4 0", "0 0", None),
        (INITIAL.replace("magmoms:R:1", "magmoms:R:3"), "1 1.2 0 0.4", "0 0 0 1.2", (1, 3)),
        (RESULTS, "-0.41 0", "0.42 0", (0, 1)),
        (RESULTS, "-1.41 0", "0.42 0", None),
        (RESULTS, "-1 0", "0 0", None),
        (RESULTS, "0 1.25", "0 0.75", None),
        (f"charge=1 multiplicity=3 {RESULTS}", "0.6 1.3", "0.38 0.71", (1, 3)),
    ],
)
def test_columns_of_charges_and_moments_add_up(
    comment: str, oxygen: str, hydrogen: str, state: tuple[int, int] | None
) -> None:
    """In the form in which ASE writes initial charges and magnetic moments, and results."""
    text = f"2\n{comment}\nO 0 0 0 {oxygen}\nH 0 0 1 {hydrogen}\n"
    if state is None:
        with recorded_error(InputError):
            parse_xyz(text, file="f")
        return
    found = parse_xyz(text, file="f").molecule
    assert (found.charge, found.multiplicity) == state


@pytest.mark.parametrize("name", ["mass", "masses"])
def test_a_column_of_masses_may_not_name_isotopes(name: str) -> None:
    """Averages as ASE writes them (bromine 79.904, of two isotopes) and most abundant isotopes are
    usual; 2.0141 u is deuterium, 80.9163 u the rarer bromine."""
    head = f"2\nProperties=species:S:1:pos:R:3:{name}:R:1\n"
    for hydrogen, bromine in ((1.008, 79.904), (1.00782503, 78.9183376)):
        found = parse_xyz(f"{head}H 0 0 0 {hydrogen}\nBr 0 0 1.4 {bromine}\n", file="f")
        assert found.molecule.natom == 2
    for hydrogen, bromine in ((2.0141, 79.904), (1.008, 80.9163)):
        with recorded_error(InputError):
            parse_xyz(f"{head}H 0 0 0 {hydrogen}\nBr 0 0 1.4 {bromine}\n", file="f")


@pytest.mark.parametrize("text", ["charge" + " " * 99_000, "2s+" * 33_000, "a_" * 49_000])
def test_long_comments_are_read_quickly(text: str) -> None:
    assert statements(text) == []


def test_the_page_lists_the_blocks() -> None:
    expected = []
    for name, block in BLOCKS.items():
        outcome = f"refused: {block.outcome}"
        if not isinstance(block.outcome, str):
            outcome = "charge {}, multiplicity {}".format(*block.outcome)
        expected.append((name, block.says, outcome))
    assert [row[:3] for row in rows_below("Mol blocks")] == expected


def read_block(folder: Path, name: str, text: str, **state: Any) -> Any:
    path = folder / f"{name}.sdf"
    path.write_text(text)
    return read_file(path, **state)


@pytest.mark.parametrize("name", BLOCKS)
def test_block(name: str, tmp_path: Path) -> None:
    block = BLOCKS[name]
    if isinstance(block.outcome, str):
        with recorded_error(InputError):
            read_block(tmp_path, "f", block.text())
    else:
        found = read_block(tmp_path, "f", block.text()).molecule
        assert (found.charge, found.multiplicity) == block.outcome
        assert len(found.symbols) == len(block.atoms.split())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("M  CHG  1   2   1", [(0, 0), (1, 0), (0, 0)]),
        ("M  RAD  1   3   2", [(0, 0), (0, 0), (0, 2)]),
    ],
)
def test_charges_and_radicals_of_lines_replace_all_codes(
    line: str, expected: list[tuple[int, int]]
) -> None:
    """As in the format: M  CHG or M  RAD sets those of atoms that it does not list to 0."""
    codes = Block("codes 4 and 5", "C:4 O:5 H", "1-2-1 2-3-1", (0, 1))
    assert [(atom.charge, atom.radical) for atom in read_mol_block(codes.text()).atoms] == [
        (0, 2),
        (-1, 0),
        (0, 0),
    ]
    both = Block("codes and a line", codes.atoms, codes.bonds, (0, 1), line)
    assert [(atom.charge, atom.radical) for atom in read_mol_block(both.text()).atoms] == expected


def test_what_an_option_explains(tmp_path: Path) -> None:
    """Radicals, carbenes and ions that the block does not state."""
    methyl = BLOCKS["methyl without M  RAD"].text()
    assert read_block(tmp_path, "f", methyl, multiplicity=2).molecule.multiplicity == 2
    carbene = BLOCKS["methylene, triplet"].text().replace("M  RAD  1   1   3\n", "")
    for state in ({"charge": -1, "multiplicity": 2}, {"charge": 2}, {"multiplicity": 3}):
        found = read_block(tmp_path, "f", carbene, **state).molecule
        assert (found.charge, found.multiplicity) == (
            state.get("charge", 0),
            state.get("multiplicity", 1),
        )
    for state in ({}, {"charge": 1}, {"charge": 2, "multiplicity": 3}):
        with recorded_error(InputError):
            read_block(tmp_path, "f", carbene, **state)
    two = BLOCKS["two radical centres"].text()
    assert read_block(tmp_path, "f", two, multiplicity=3).molecule.multiplicity == 3


@pytest.mark.parametrize("rest", ["", " 1   1.00000     0.00000     0"])
def test_a_drawing_is_refused(rest: str) -> None:
    """Columns 21 and 22 of the second line say so, whatever follows."""
    first, _, others = BLOCKS["ethanol"].text().split("\n", 2)
    whole = "\n".join([first, f"     RDKit          3D{rest}", others])
    assert read_mol_block(whole) == read_mol_block(BLOCKS["ethanol"].text(program="RDKit"))
    with recorded_error(InputError):
        read_mol_block(whole.replace("3D", "2D", 1))


@pytest.mark.parametrize(
    ("atoms", "bonds", "lines", "lacks"),
    [
        ("C H", "1-2-1", "M  RAD  1   1   1", {0: 1}),  # a singlet carbene has two free electrons
        ("C H", "1-2-1", "M  RAD  1   1   3", {0: 1}),
        ("C H", "1-2-1", "M  RAD  1   1   2", {0: 2}),
        ("C:4 H", "1-2-1", "", {0: 2}),
        ("N H", "1-2-1", "M  CHG  1   1   1", {0: 3}),
        ("N:3 H", "1-2-1", "", {0: 3}),
        ("N:5 H", "1-2-1", "", {0: 1}),
        ("B H H H", "1-2-1 1-3-1 1-4-1", "M  CHG  1   1  -1", {0: 1}),
        ("C:0:3 H", "1-2-1", "", {0: 2}),
        ("C:0:15 H", "1-2-1", "", {}),
        ("S F F F", "1-2-1 1-3-1 1-4-1", "", {0: 1}),
        ("S F F F F F", "1-2-1 1-3-1 1-4-1 1-5-1 1-6-1", "", {0: 1}),
        ("P F F F F", "1-2-1 1-3-1 1-4-1 1-5-1", "", {0: 1}),
        ("Cl O O", "1-2-2 1-3-1", "", {2: 1}),
        ("Si H H", "1-2-1 1-3-1", "", {0: 2}),
        ("Se C H", "1-2-1 1-3-1", "", {1: 3}),
        ("Xe F F F", "1-2-1 1-3-1 1-4-1", "", {0: 1}),
        ("O C H", "1-2-3 2-3-1", "", {}),
        ("N C C", "1-2-4 2-3-4 3-1-4", "", {1: 1, 2: 1}),
        ("Fe C H", "1-2-1 2-3-1", "", {}),
        ("C C", "1-2-8", "", {}),
        # One bond too many of an element of the second period fills a valence of the neighbour.
        ("B H H H O", "1-2-1 1-3-1 1-4-1 1-5-1", "", {}),
        ("C H H H H O", "1-2-1 1-3-1 1-4-1 1-5-1 1-6-1", "", {}),
        ("N H H H O", "1-2-1 1-3-1 1-4-1 1-5-1", "", {}),
        ("O H H O", "1-2-1 1-3-1 1-4-1", "", {}),
        ("F H O", "1-2-1 1-3-1", "", {}),
        ("Si H H H H O", "1-2-1 1-3-1 1-4-1 1-5-1 1-6-1", "", {5: 1}),
        ("N:0:3 C C", "1-2-4 2-3-4 3-1-4", "", {1: 1, 2: 1}),
        # Codes of charges are 3 for 1 and 5 for -1, that of a doublet is 4.
        ("N:3 H H H H", "1-2-1 1-3-1 1-4-1 1-5-1", "", {}),
        ("N:3 H H H", "1-2-1 1-3-1 1-4-1", "", {0: 1}),
        ("O:5 H", "1-2-1", "", {}),
        ("O:5", "", "", {0: 1}),
        ("O:3 H H H", "1-2-1 1-3-1 1-4-1", "", {}),
        ("C:3 H H H", "1-2-1 1-3-1 1-4-1", "", {}),
        ("C:5 H H H", "1-2-1 1-3-1 1-4-1", "", {}),
        ("B:5 H H H H", "1-2-1 1-3-1 1-4-1 1-5-1", "", {}),
        ("H:3", "", "", {}),
        ("C:4 H H H", "1-2-1 1-3-1 1-4-1", "", {}),
        ("C:4 H H", "1-2-1 1-3-1", "", {0: 1}),
        ("C H H", "1-2-1 1-3-1", "M  RAD  1   1   1", {}),
        ("C H H", "1-2-1 1-3-1", "M  RAD  1   1   3", {}),
        ("C:0:3 H H", "1-2-1 1-3-1", "", {0: 1}),
        ("C:0:3 H H H", "1-2-1 1-3-1 1-4-1", "", {}),
        ("C:0:15", "", "", {}),
        ("Fe H", "1-2-1", "", {}),
        ("Na:3", "", "", {}),
    ],
)
def test_hydrogens_that_atoms_lack(
    atoms: str, bonds: str, lines: str, lacks: dict[int, int]
) -> None:
    """By the valences of the elements, or of those with as many electrons; kinds of radicals fill 2, 1
    and 2."""
    block = Block("", atoms, bonds, (0, 1), lines)
    assert unfilled(read_mol_block(block.text())) == lacks


@pytest.mark.parametrize(
    ("name", "value", "state"),
    [
        ("charge", "2", (2, 1)),
        ("PUBCHEM_TOTAL_CHARGE", "-1", (-1, 1)),
        ("molecular charge", "1", (1, 1)),
        ("Multiplicity", "3", (0, 3)),
        ("spin mult", "3", (0, 3)),
        ("spin", "3/2", (0, 4)),
        ("unpaired electrons", "2", (0, 3)),
        ("unpaired_electrons", "1", (0, 2)),
        ("UHF", "2", (0, 3)),
        ("recharge", "2", (0, 1)),
    ],
)
def test_data_of_a_block_that_state_charge_or_spin(
    name: str, value: str, state: tuple[int, int], tmp_path: Path
) -> None:
    text = Block("", "Ca", "", "", f"> 1 <{name}>\n{value}\n").text()
    found = read_block(tmp_path, "x", text).molecule
    assert (found.charge, found.multiplicity) == state
    with recorded_error(InputError):
        read_block(tmp_path, "x", text, units="bohr")
    said = f"3D\n{name.removeprefix('PUBCHEM_')}={value}\n"
    third = text.partition("> 1")[0].replace("3D\n\n", said)
    assert read_block(tmp_path, "x", third).molecule == found


@pytest.mark.parametrize(
    ("bonds", "lines"),
    [
        *((bonds, "") for bonds in ("1-3-1", "3-1-1", "0-2-1", "2-0-1", "2-2-1")),
        *(("1-2-1", f"M  {name}") for name in ("CHG", "RAD", "CHG  1   3   1", "RAD  1   0   2")),
    ],
)
def test_bonds_and_properties_of_atoms_that_are_not(bonds: str, lines: str) -> None:
    with recorded_error(InputError):
        read_mol_block(Block("", "C H", bonds, "", lines).text())


def test_ase_writes_all_bonds_as_single_ones() -> None:
    ethene = BLOCKS["ethanol without hydrogens"].text(program="ASE")
    assert unfilled(read_mol_block(ethene)) == {}


RECORDS = ("ATOM  ", "HETATM")
ATOM = "HETATM    1  O   OH  A   1       0.000   0.000   0.000  1.00  0.00           O{}"


@pytest.mark.parametrize(
    ("written", "charge"),
    [("1-", -2), ("-1", -2), ("3+", 2), ("+1", 0), ("0+", -1), ("0 ", -1), ("", -1)],
)
@pytest.mark.parametrize("record", RECORDS)
def test_charge_of_a_pdb_atom(written: str, charge: int, record: str, tmp_path: Path) -> None:
    path = tmp_path / "oh.pdb"
    second = ATOM.format("1-").replace("0.000  1.00", "0.970  1.00")
    text = f"{ATOM.format(written)}\n{second}\nEND\n".replace("HETATM", record)
    path.write_text(text)
    found = read_file(path)
    assert (found.molecule.charge, found.molecule.multiplicity) == (charge, 1)
    assert found.charge_from == ("file" if charge else "default")  # neutral by its atoms
    assert found.multiplicity_from == "default" and found.molecule.text == text
    asked = read_file(path, charge=3, multiplicity=4, called="other.pdb")
    assert (asked.charge_from, asked.multiplicity_from) == ("option", "option")
    assert (asked.molecule.charge, asked.molecule.multiplicity) == (3, 4)
    assert (asked.molecule.name, asked.molecule.source) == ("other", "other.pdb")
    with recorded_error(InputError):
        read_file(path, units="bohr")


OXYGEN = ATOM.format("")
CARBON = f"{OXYGEN.replace('O', 'C', 1).replace('0.000', '1.400', 1)[:-1]}C"
REFUSED_PDB = {
    "deuterium": f"{OXYGEN[:76]} D",
    "tritium": f"{OXYGEN[:76]} T",
    "an alternate location": f"{OXYGEN[:16]}B{OXYGEN[17:]}",
    "atoms behind the last end": f"{OXYGEN}\nEND\n{OXYGEN}",
    # Methanol without its hydrogens would be carbon monoxide.
    "no hydrogens": f"{CARBON}\n{OXYGEN}",
    **{f"charge {written}": ATOM.format(written) for written in ("1", "--", "-", "A1")},
    **{
        f"{record} {name}, which may be two elements": f"{record}{OXYGEN[6:12]}{name}{OXYGEN[16:76]}"
        for record in RECORDS
        for name in (" CA ", " HG ", "HE21", " NE ", " D1 ")
    },
}


@pytest.mark.parametrize("name", REFUSED_PDB)
def test_a_pdb_file_that_may_be_another_molecule_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.pdb").write_text(f"{REFUSED_PDB[name]}\nEND\n")
    with recorded_error(InputError):
        read_file(tmp_path / "x.pdb")


def test_a_mass_difference_is_refused(tmp_path: Path) -> None:
    text = BLOCKS["heavy water"].text().replace("M  ISO  2   2   2   3   2\n", "")
    assert read_block(tmp_path, "light", text).molecule.formula == "H2O"
    with recorded_error(InputError):
        read_block(tmp_path, "heavy", text.replace(" H   0  0", " H   1  0", 1))


@pytest.mark.parametrize(
    ("element", "name", "expected"),
    [(" C", " CA ", "C"), ("CA", "CA  ", "Ca"), ("  ", " C1 ", "C"), ("", " O12", "O")],
)
def test_the_element_of_a_pdb_atom(element: str, name: str, expected: str, tmp_path: Path) -> None:
    line = ATOM.format("")
    (tmp_path / "x.pdb").write_text(f"{line[:12]}{name}{line[16:76]}{element}\nEND\n")
    assert read_file(tmp_path / "x.pdb").molecule.symbols == (expected,)


@pytest.mark.parametrize("element", ["H", "F", "Cl", "Br", "I"])
def test_a_pdb_file_with_what_carbon_is_bonded_to_is_read(element: str, tmp_path: Path) -> None:
    (tmp_path / "x.pdb").write_text(f"{CARBON}\n{OXYGEN[:76]}{element:>2}\nEND\n")
    assert read_file(tmp_path / "x.pdb").molecule.symbols == ("C", element)


def test_a_drawing_without_its_code_is_refused(tmp_path: Path) -> None:
    """All z are 0. Atoms with four hydrogens show it, also as ions of charge 1 (code 3) and -1 (code
    5); ethene could be planar."""

    def read_flat(atoms: str, bonds: str) -> Any:
        text = Block("", atoms, bonds, "").text()
        return read_block(tmp_path, "x", re.sub(r"0\.\d000 (?=[A-Z])", "0.0000 ", text))

    assert read_flat("C C H H H H", "1-2-2 1-3-1 1-4-1 2-5-1 2-6-1").molecule.natom == 6
    for atom in ("C", "Si", "Ge", "N:3", "P:3", "B:5"):
        with recorded_error(InputError):
            read_flat(f"{atom} H H H H", "1-2-1 1-3-1 1-4-1 1-5-1")


@pytest.mark.parametrize("between", ["$$$$\n", ""])
@pytest.mark.parametrize("end", ["sdf", "mol"])
def test_a_second_molecule_is_not_ignored(between: str, end: str, tmp_path: Path) -> None:
    """Even where only one line of dollars, or none, separates the two."""
    path = tmp_path / f"x.{end}"
    path.write_text(
        f"{BLOCKS['ethanol'].text()}{between}{BLOCKS['benzene, aromatic bonds'].text()}"
    )
    with recorded_error(InputError):
        read_file(path)


def block_of(*atoms: Atom, bonds: str = "", charged: bool = False) -> MolBlock:
    pairs = [bond.split("-") for bond in bonds.split()]
    made = tuple((int(a) - 1, int(b) - 1, int(order)) for a, b, order in pairs)
    return MolBlock(atoms, made, "test", (), charged)


@pytest.mark.parametrize(
    ("code", "charge", "radical"),
    [
        (0, 0, 0),
        (1, 3, 0),
        (2, 2, 0),
        (3, 1, 0),
        (4, 0, 2),
        (5, -1, 0),
        (6, -2, 0),
        (7, -3, 0),
        (8, None, 0),
    ],
)
def test_codes_of_atom_lines(code: int, charge: int | None, radical: int) -> None:
    """The table of the format (CTfile Formats, BIOVIA 2020, "Atom block")."""
    text = Block("", f"N:{code} H", "1-2-1", "").text()
    if charge is None:
        with recorded_error(InputError):
            read_mol_block(text)
        return
    made = read_mol_block(text)
    assert made.atoms[0] == Atom("N", charge, radical, 0) and made.atoms[1] == Atom("H", 0, 0, 0)
    assert (made.charge, made.charged) == (charge, charge != 0)
    assert made.bonds == ((0, 1, 1),) and made.written_by == "test"


# What may be bonded to each element: of its groups, as textbooks have them.
FULL = {
    **{"H": (1,), "B": (3,), "C": (4,), "N": (3,), "O": (2,), "F": (1,), "Si": (4,)},
    **{"P": (3, 5), "S": (2, 4, 6), "Cl": (1, 3, 5, 7), "Ge": (4,), "As": (3, 5)},
    **{"Se": (2, 4, 6), "Br": (1, 3, 5, 7), "Te": (2, 4, 6), "I": (1, 3, 5, 7)},
    **{"He": (0,), "Ne": (0,), "Ar": (0,), "Kr": (0, 2, 4), "Xe": (0, 2, 4, 6, 8)},
}


@pytest.mark.parametrize("symbol", FULL)
def test_valences_of_main_groups(symbol: str) -> None:
    """Valences are filled by hydrogen, one fewer than for the next larger valence."""
    for count in range(9):
        bonds = " ".join(f"1-{n + 2}-1" for n in range(count))
        made = block_of(*[Atom(symbol, 0, 0, 0)], *[Atom("H", 0, 0, 0)] * count, bonds=bonds)
        lacks = unfilled(made).get(0, 0)
        larger = [valence for valence in FULL[symbol] if valence >= count]
        if count in FULL[symbol] or not larger or (symbol == "N" and count > 3):
            assert lacks == 0
        else:
            assert lacks == larger[0] - count


@pytest.mark.parametrize(
    ("charge", "multiplicity", "charged", "explained"),
    [
        (None, None, False, set()),
        (-2, None, False, {2}),
        (-2, None, True, {0}),
        (None, 3, False, {2}),
        (1, 3, False, {3}),
        (None, 1, False, {0, 2}),
        (1, 1, False, {1, 3}),
        (1, 4, True, {3}),
    ],
)
def test_unfilled_valences_that_options_explain(
    charge: int | None, multiplicity: int | None, charged: bool, explained: set[int]
) -> None:
    assert _explained(block_of(charged=charged), charge, multiplicity) == explained


@pytest.mark.parametrize(
    "reader", [read_file, read_frames, read_xyz, parse_xyz, parse_text, read_point_charges]
)
def test_defaults_of_readers_are_in_angstrom(reader: Any) -> None:
    assert inspect.signature(reader).parameters["units"].default == "angstrom"
