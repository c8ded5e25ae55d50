"""Charge and spin in files: the tables on the docs page agree with what the readers accept and
reject."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from dfmp2.errors import InputError
from dfmp2.molecule.comment import statements
from dfmp2.molecule.files import read_file, read_frames
from dfmp2.molecule.mol_block import Atom, MolBlock, _explained, read_mol_block, unfilled
from dfmp2.molecule.xyz import parse_xyz, read_xyz
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
        if "contradict" in outcome:
            assert "keep one" in outcome
        else:
            assert re.search(r"write (charge|multiplicity)=", outcome), outcome
            assert re.search(r"pass (--|both as options)", outcome), outcome
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
        *("spin=1/0", "spin=-1", "spin=200", "nelec=+9-", "8 electrons"),
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


def test_a_charge_that_is_given_wins_over_a_number_of_electrons() -> None:
    """A multiplicity does not: OH has nine electrons without charge."""
    text = f"2\nelectrons=10\n{OH}"
    assert parse_xyz(text, file="f", charge=1).molecule.charge == 1
    with pytest.raises(InputError, match="with charge 0 there are 9 electrons"):
        parse_xyz(text, file="f", multiplicity=2)


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


@pytest.mark.parametrize("name", BLOCKS)
def test_block(name: str, tmp_path: Path) -> None:
    block = BLOCKS[name]
    (tmp_path / "f.sdf").write_text(block.text())
    if isinstance(block.outcome, str):
        with recorded_error(InputError):
            read_file(tmp_path / "f.sdf")
    else:
        found = read_file(tmp_path / "f.sdf").molecule
        assert (found.charge, found.multiplicity) == block.outcome
        assert len(found.symbols) == len(block.atoms.split())


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


@pytest.mark.parametrize("reader", [read_file, read_frames, read_xyz, parse_xyz])
def test_defaults_of_readers_are_in_angstrom(reader: Any) -> None:
    assert inspect.signature(reader).parameters["units"].default == "angstrom"
