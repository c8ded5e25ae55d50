"""Charge and spin from the comment line of an xyz file: accepted if the meaning is unique, else
rejected.

    charge: -1          net charge 1          chg=+1, mult 2          {"charge": -1}          read
    doublet             2S+1=3                unpaired=1              spin 1/2                read
    spin 1              q -1                  charge 0.5              anion                   refused

A statement is a word for charge or spin next to a number, or a word such as triplet. Words without
a number (charge-transfer complex, spin-coated, q-chem output) state nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from dfmp2.errors import InputError, Message, Option
from dfmp2.errors.messages import N
from dfmp2.molecule.text import shown

MINUS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2212\ufe63\uff0d"), "-")
SPIN_STATES = {
    "singlet": 1,
    "doublet": 2,
    "triplet": 3,
    "quartet": 4,
    "quintet": 5,
    "sextet": 6,
    "septet": 7,
    "octet": 8,
    "nonet": 9,
}
IONS = {"mono": 1, "di": 2, "tri": 3, "tetra": 4}
COUNTS = ("one", "two", "three", "four", "five", "six")
SPELT = ("minus", "plus", "negative", "positive", "zero", *COUNTS)
# Prefixes joined to a word by _ or - that leave it a property of the molecule.
OF_THE_MOLECULE = {
    "total",
    "net",
    "overall",
    "molecular",
    "molecule",
    "mol",
    "tot",
    "system",
    "formal",
    "spin",
    "n",
    "num",
    "number",
    "nr",
    "state",
    "the",
    "job",
    "input",
}
# Words before it, joined or separate, that make it the charge or spin of something else.
OF_SOMETHING_ELSE = {
    "nuclear",
    "core",
    "point",
    "partial",
    "atomic",
    "effective",
    "mulliken",
    "loewdin",
    "lowdin",
    "hirshfeld",
    "resp",
    "esp",
    "chelpg",
    "npa",
    "nbo",
    "bader",
    "cm5",
    "atom",
    "background",
    "fragment",
    "surface",
    "image",
    "probe",
    "counter",
    "electron",
    "proton",
    "electronic",
    "metal",
    "ligand",
    "solvent",
    "site",
    "ion",
    "iron",
    "zinc",
    "oxygen",
}
# Joined after a word by _ or -, these make a quantity that is neither charge nor multiplicity.
OTHER_QUANTITIES = {
    "transfer",
    "density",
    "contamination",
    "orbit",
    "squared",
    "method",
    "model",
    "scheme",
    "population",
    "center",
    "centre",
    "energy",
    "gap",
    "correction",
    "component",
    "scaling",
    "constant",
    "coupling",
    "basis",
    "type",
    "penalty",
    "separation",
    "error",
    "channels",
}

_BEFORE = r"(?<![a-z0-9])"
_CHARGE = (
    r"(?:(?:total|net|mol|tot|molecular|system|overall|formal)[\s_-]?|i)?(?:charge?|chrg|chg)"
    r"(?:[\s_-]{0,3}(?:state|number|total|tot)(?![a-z0-9]))?"
    r"|icharg"
)
_MULTIPLICITY = r"(?:spin[\s_-]{0,3})?(?:multiplicity|multiplicty|multip|mult|mul)|multiplet|2\s?\*?\s?s\s?\+\s?1\)?"
_UNPAIRED = r"n?_?unpaired(?:[\s_-]{1,3}(?:electrons?|spins?|e)(?![a-z0-9]))?|n?uhf|nopen|2s"
_MOMENT = r"magmom|magnetic[\s_]moment|(?:total[\s_])?magnetization|magnetisation"
_SPIN = r"spin[\s_-]{0,3}(?:state|number|quantum[\s_]number|total)|spin|m_?s|s_?z|s"
_ELECTRONS = r"n_?elec(?:trons?)?|(?:n|num|number[\s_]of)?[\s_]?electrons"
_WORD = (
    rf"(?:(?P<charge>{_CHARGE}|q)|(?P<multiplicity>{_MULTIPLICITY}|m)|(?P<unpaired>{_UNPAIRED})"
    rf"|(?P<moment>{_MOMENT})|(?P<spin>{_SPIN})|(?P<electrons>{_ELECTRONS}))(?![a-z])"
)
_NUMBER = r"[+-]?(?:\d+\s?/\s?\d+|\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+)(?:[+-](?![\w.]))?"
_END = r"(?![\w*]|[.+-]\w)"
_STATEMENT = re.compile(
    rf"{_BEFORE}{_WORD}(?:"
    rf"(?P<equals>\s*(?:=>|->|={{1,2}}|:=?)\s*)(?:(?P<value>{_NUMBER}){_END}|(?P<other>[^\s,;]*))"
    rf"|(?:\s*[,(\[|]\s*|\s+(?:is|of|was|equals|equal\s+to|set\s+to)\s+|\s+)"
    rf"(?:(?P<beside>{_NUMBER})(?:e(?!\w))?{_END}|(?P<spelt>(?:{'|'.join(SPELT)})\b))"
    rf"|(?P<joined>[_-]*[+-]?\d+|[^\w]{{1,6}}\d+(?:\.\d*)?)(?![a-z0-9*]|[.+-]\w)"
    rf"|(?P<place>\s(?:of|on|for|in)(?:\s[a-z]+){{1,4}}?)(?:\s?[=:]\s?|\sis\s)(?P<there>{_NUMBER}){_END}"
    rf"|(?P<behind>(?:[_-][a-z]{{1,20}}){{1,3}})\s*[=:]\s*(?P<its>{_NUMBER}){_END})",
    re.ASCII,
)
_TWO = re.compile(  # charge/mult = -1 2
    rf"{_BEFORE}(?P<first>{_CHARGE}|q|{_MULTIPLICITY}|spin)\s*(?:[,/&|;+_-]|and\b|\s)\s*"
    rf"(?P<second>{_CHARGE}|{_MULTIPLICITY}|m|spin)(?![a-z0-9])[\s)\]=:(\[]*"
    rf"(?P<one>{_NUMBER})(?:\s*[,;/|]\s*|\s+)(?P<two>{_NUMBER}){_END}",
    re.ASCII,
)
_AHEAD = re.compile(  # -1 charge; 3 unpaired electrons
    r"(?<![\w.+=:-])(?<![=:] )(?:(?P<signed>[+-]\d+|\d+[+-])\s?(?:e\s)?(?:charged?|chg)\b"
    r"|(?P<plain>\d+)[ ](?P<noun>charge|multiplicity|spin)\s*(?=$|[.,;:)])"
    r"|(?P<count>\d+)\s+unpaired\b|(?P<electrons>\d+)\selectrons\b)",
    re.ASCII,
)
_BEHIND_CHARGE = re.compile(  # charge 0 3
    rf"{_BEFORE}(?:{_CHARGE})(?:\s*[:=]\s*|\s+){_NUMBER}(?:\s*[,;/|]\s*|\s+)(?P<number>[1-9])$",
    re.ASCII,
)
_FORMULA_WITH_CHARGE = re.compile(  # SO4 2-, [NH4]+, Fe2+
    r"(?<![\w+-])[\[(]?(?P<formula>(?:[A-Z][a-z]?[0-9]{0,3}){1,20})[\])]?"
    r"(?:\s?\^?[({]{0,2}(?P<size>[0-9]))?\^?[({]{0,2}(?P<signs>[+-]{1,4})[)}]{0,2}(?![\w.+-])",
    re.ASCII,
)
_ELEMENT = re.compile("([A-Z][a-z]?)([0-9]*)")
_STATE_WORD = re.compile(rf"{_BEFORE}({'|'.join(SPIN_STATES)})s?(?![a-z0-9])")
_ION = re.compile(rf"{_BEFORE}({'|'.join(IONS)})?-?(an|cat)ion(?:s|ic)?(?![a-z0-9])")
_UNNUMBERED = {
    "charge": re.compile(
        rf"{_BEFORE}(?:positively|negatively|singly|doubly|triply)[\s-]charged(?![a-z0-9])"
        rf"|{_BEFORE}charged\s[+-]?\d+{_END}|{_BEFORE}charges\s?[=:]\s?[+-]?[.\d]"
    ),
    "multiplicity": re.compile(
        rf"{_BEFORE}(?:high[\s-]spin|[bd]i-?radical)s?(?![a-z0-9])"
        rf"|{_BEFORE}(?:{'|'.join(COUNTS)})\sunpaired(?![a-z0-9])"
        rf"|{_BEFORE}n_?(?:alpha|beta)\s?[=:]\s?\d+"
    ),
}
_WHOLE = re.compile(r"[+-]?\d{1,9}(?:\.0*)?(?:e[+-]?0+)?")
# Psi4 and QCElemental write charge, multiplicity and a name; others only the two numbers.
_NUMBERS_ALONE = re.compile(
    r"(?:\*\s?xyz(?:file)?\s|\$molecule\s)?[\s(\[]*([+-]?\d{1,2})(?:\s*[,/;|]\s*|\s+)([1-9]\d?)[\s)\]]*(?:\s[a-z(\[][^\s=:]*\s*)?"
)


@dataclass(frozen=True, slots=True)
class Statement:
    """What part of a comment line says about charge or spin.

    Attributes
    ----------
    quantity : "charge", "multiplicity" or "electrons"
    words : the part of the line, for errors
    meanings : possible values, empty if no number can be derived
    certain : whether it is used; if not, it is only compared with the value used
    why : what is wrong with it if it is not certain
    quoted : whether it is part of the text of another key, so that any other statement overrides it
    """

    quantity: str
    words: str
    meanings: frozenset[int] = field(default_factory=frozenset)
    certain: bool = True
    why: str = ""
    quoted: bool = False


def statements(comment: str, hidden: list[str] | None = None) -> list[Statement]:
    """What a comment line says about charge and spin.

    Parameters
    ----------
    comment : the line, without quoted values of other keys
    hidden : those values; their statements are never used, but must not contradict the others

    Raises
    ------
    InputError : a charge or multiplicity is not a whole number
    """
    listed = list(_statements(comment))
    why = "stands in the text of another key"
    for text in hidden or []:
        listed += [replace(one, certain=False, why=why, quoted=True) for one in _statements(text)]
    return listed


def settle(
    quantity: str, listed: list[Statement], option: int | None, default: int
) -> tuple[int, str]:
    """Charge or multiplicity, and its origin: "option", "comment line" or "default".

    Parameters
    ----------
    quantity : "charge" or "multiplicity"
    listed : all statements in the file
    option : takes precedence if not None, but the comment must still make sense
    default : used if nothing is stated

    Raises
    ------
    InputError : statements contradict each other, or one of them is ambiguous
    """
    concerned = [one for one in listed if one.quantity == quantity]
    certain = [one for one in concerned if one.certain]
    values = frozenset[int]().union(*(one.meanings for one in certain))
    if len(values) > 1:
        words = ", ".join(dict.fromkeys(one.words for one in certain[:4]))
        raise InputError(f"{words} contradict each other: keep one")
    if option is not None:
        return option, "option"
    if values:
        value, origin = next(iter(values)), "comment line"
    else:
        value, origin = default, "default"
    for one in concerned:
        if values and (value in one.meanings or not one.meanings or one.quoted):
            continue
        if one.meanings == {value}:
            continue
        if values:
            raise InputError(
                f"{one.words} contradicts {quantity}={value} on the same line: keep one"
            )
        raise InputError(f"{shown(one.words)} {one.why}: ", _spellings(one))
    return value, origin


def require_electrons(listed: list[Statement], nuclear_charge: int, charge: int) -> None:
    """Raise if a stated number of electrons disagrees with the charge.

    Parameters
    ----------
    nuclear_charge : of all atoms except ghosts, e
    """
    for one in listed:
        if one.quantity == "electrons" and nuclear_charge - charge not in one.meanings:
            (electrons,) = one.meanings
            raise InputError(
                (
                    f"{shown(one.words)}: with charge {charge} there are {nuclear_charge - charge} "
                    f"electrons, and {electrons} with charge {nuclear_charge - electrons}: write "
                    f"charge={nuclear_charge - electrons} in the comment, or pass "
                ),
                Option("charge", nuclear_charge - electrons),
            )


def charges_of_formulas(comment: str, symbols: Sequence[str]) -> list[Statement]:
    """Statements made by the formula of the molecule with a charge, such as "SO4 2-".

    Parameters
    ----------
    symbols : of the real atoms of the file; other formulas state nothing about them
    """
    listed = []
    atoms = Counter(symbols)
    for match in _FORMULA_WITH_CHARGE.finditer(comment.translate(MINUS)):
        formula, size, signs = match["formula"], match["size"], match["signs"]
        if size is None and _atoms_of(formula) != atoms and formula[-1].isdigit():
            formula, size = formula[:-1], formula[-1]  # Fe2+ is one atom
        if _atoms_of(formula) != atoms or len(set(signs)) > 1:
            continue
        charge = int(size or len(signs))
        if signs[0] == "-":
            charge = -charge
        listed.append(
            Statement(
                quantity="charge",
                words=match[0],
                meanings=frozenset({charge}),
                certain=False,
                why="may be a charge",
            )
        )
    return listed


def _atoms_of(formula: str) -> Counter[str]:
    """How many atoms of each element a formula without brackets has."""
    atoms: Counter[str] = Counter()
    for symbol, number in _ELEMENT.findall(formula):
        atoms[symbol] += int(number or 1)
    return atoms


def numbers_alone(comment: str) -> tuple[int, int] | None:
    """Charge and multiplicity of a line such as "-1 2" or "-1 2 HO", which other programs write."""
    match = _NUMBERS_ALONE.fullmatch(_plain(comment))
    if match is None:
        return None
    return int(match[1]), int(match[2])


def _plain(text: str) -> str:
    """The text in lower case, with one kind of minus sign and without quotation marks."""
    text = unicodedata.normalize("NFKC", text).translate(MINUS)
    return " ".join(re.sub("[\"'`{}]", " ", text.lower()).split()).replace(" :", ":")


def _statements(text: str) -> Iterator[Statement]:
    text = _plain(text)
    left = text
    for match in _TWO.finditer(text):
        left = left.replace(match[0], " " * len(match[0]), 1)
        second = "multiplicity" if match["second"] == "m" else match["second"]
        for word, number in ((match["first"], match["one"]), (second, match["two"])):
            yield from _of_a_word(f"{word}={number}")
    yield from _of_a_word(left)
    yield from _ahead(left)
    behind = _BEHIND_CHARGE.search(left)
    if behind is not None:
        yield Statement(
            quantity="multiplicity",
            words=behind[0],
            meanings=frozenset({int(behind["number"])}),
            certain=False,
            why="may state a multiplicity",
        )
    for match in _STATE_WORD.finditer(left):
        yield Statement("multiplicity", match[0], frozenset({SPIN_STATES[match[1]]}))
    for match in _ION.finditer(left):
        if match[1] is None:
            yield _unread("charge", match[0], "names a charge without its number")
        else:
            sign = -1 if match[2] == "an" else 1
            yield Statement("charge", match[0], frozenset({sign * IONS[match[1]]}))
    for quantity, pattern in _UNNUMBERED.items():
        for match in pattern.finditer(left):
            yield _unread(quantity, match[0], f"does not say which {quantity}")


def _of_a_word(text: str) -> Iterator[Statement]:
    """Statements made by a word followed by a number."""
    for match in _STATEMENT.finditer(text):
        statement = _of_a_match(match, text)
        if statement is not None:
            yield statement


def _of_a_match(match: re.Match[str], text: str) -> Statement | None:
    """What a word states of the molecule, None if it is about something else."""
    kind = next(name for name in KINDS if match[name] is not None)
    quantity, word, words = KINDS[kind], match[kind], match[0].strip(" ,;(")
    if match["behind"] is not None:
        if OTHER_QUANTITIES & set(re.split("[_-]", match["behind"])):
            return None
        return _unread(quantity, words, "is a name that is not known")
    number = match["value"] or match["beside"]
    has_other_uses = len(word) == 1 or word in ("ms", "sz", "uhf", "nuhf", "2s")
    if has_other_uses and not _is_symbol_of_state(word, number, match, text):
        return None
    before = text[max(0, match.start() - 32) : match.start()]
    joined = re.search(r"([a-z0-9]+)[_-]+$", before)
    apart = re.search(r"([a-z0-9]+)\s+$", before)
    if joined and joined[1] in OTHER_QUANTITIES | {"surface"}:
        return None
    if number is None and match["other"] is not None:
        return _of_a_text(kind, word, words, match)
    if number is None:
        return _unread(quantity, words, f"does not say clearly which {quantity}")
    of_another = bool(apart and apart[1] in OF_SOMETHING_ELSE)
    if joined and joined[1] not in OF_THE_MOLECULE and not joined[1].isdigit():
        of_another = True
    if of_another and (match["equals"] or apart):
        ahead = before.rstrip().rsplit(" ", 1)[-1] + before[len(before.rstrip()) :]
        return _unread(quantity, ahead + words, NOT_OF_THE_MOLECULE)
    if word == "q" and match["equals"] is None:
        return _unread(quantity, words, "may be a charge")
    if word == "m":
        return Statement(
            quantity=quantity,
            words=words,
            meanings=_meanings(kind, number)[0],
            certain=False,
            why="may be a multiplicity",
        )
    return _statement(kind, words, number)


KINDS = {
    "charge": "charge",
    "multiplicity": "multiplicity",
    "unpaired": "multiplicity",
    "moment": "multiplicity",
    "spin": "multiplicity",
    "electrons": "electrons",
}
NOT_OF_THE_MOLECULE = "does not seem to be the molecule's"


def _is_symbol_of_state(word: str, number: str | None, match: re.Match[str], text: str) -> bool:
    """Whether a symbol that has other uses means charge or spin here."""
    if number is None:
        return False
    if word == "q":
        return match["equals"] is not None or _WHOLE.fullmatch(number) is not None
    if word == "m":
        beside = re.search(rf"{_BEFORE}(?:q|c|charge|chrg|chg)\s?[=:]", text)
        return beside is not None and _WHOLE.fullmatch(number) is not None
    if word in ("uhf", "nuhf"):
        return re.fullmatch(r"\+?\d{1,2}", number) is not None
    if match["equals"] is None:
        return False
    spin = _fraction(number.replace(" ", ""))
    return spin is not None and (2 * spin).denominator == 1


def _of_a_text(kind: str, word: str, words: str, match: re.Match[str]) -> Statement | None:
    """The statement made by `charge=neutral`, `spin: doublet` or `charge=`."""
    other = match["other"].strip("()[].|")
    if kind == "charge" and other in ("neutral", "none", "zero"):
        return Statement("charge", words, frozenset({0}))
    if KINDS[kind] == "multiplicity" and other in SPIN_STATES:
        return None  # found under its own name
    if "=" in match["equals"] or not re.match("[a-z_]{2}", other) or other in SPELT:
        raise InputError(
            f"{word}={shown(other)}: expected a whole number; ", _spelling(KINDS[kind])
        )
    return None


def _statement(kind: str, words: str, number: str) -> Statement:
    """The statement made by a number next to a word.

    Raises
    ------
    InputError : it should be a whole number
    """
    quantity = KINDS[kind]
    meanings, why = _meanings(kind, number)
    if kind == "electrons" and not meanings:
        return _unread("charge", words, "is not a number of electrons")
    return Statement(quantity, words, meanings, certain=not why, why=why)


def _meanings(kind: str, number: str) -> tuple[frozenset[int], str]:
    """Values of the quantity that a number may mean, and why they are not certain."""
    number = number.replace(" ", "")
    if kind == "spin":
        return _meanings_of_spin(number)
    if kind == "moment":
        return _meanings_of_moment(number)
    if number[-1] in "+-":
        if number[0] in "+-":
            return frozenset(), "has two signs"
        number = number[-1] + number[:-1]
    if not _WHOLE.fullmatch(number):
        raise InputError(
            f"{NAMES[kind]}={shown(number)}: expected a whole number; ", _spelling(KINDS[kind])
        )
    value = int(float(number))
    if kind != "unpaired":
        return frozenset({value}), ""
    if value < 0:
        raise InputError(f"unpaired={number}: expected 0 or more electrons")
    return frozenset({value + 1}), ""


NAMES = {
    "charge": "charge",
    "multiplicity": "multiplicity",
    "unpaired": "unpaired electrons",
    "electrons": "electrons",
}


MOST_UNPAIRED = 100  # electrons that a spin or a magnetic moment may state


def _meanings_of_moment(number: str) -> tuple[frozenset[int], str]:
    """The multiplicity that a magnetic moment means, if it is nearly whole."""
    unknown = frozenset[int](), "is not a whole number of unpaired electrons"
    try:
        moment = abs(float(number))
    except ValueError:
        return unknown
    if moment > MOST_UNPAIRED or abs(moment - round(moment)) > 0.05:
        return unknown
    return frozenset({round(moment) + 1}), ""


def _meanings_of_spin(number: str) -> tuple[frozenset[int], str]:
    """Multiplicities that a spin may mean: S, 2S or 2S + 1."""
    spin = _fraction(number)
    if spin is None or spin < 0 or spin > MOST_UNPAIRED:
        return frozenset(), "is not a spin"
    if spin == 0 or spin.denominator == 2:
        return frozenset({int(2 * spin) + 1}), ""
    if spin.denominator > 2:
        return frozenset(), "is not a spin"
    whole = int(spin)
    return frozenset({whole, whole + 1, 2 * whole + 1}), "is ambiguous (S, 2S or 2S + 1)"


def _fraction(number: str) -> Fraction | None:
    """A number such as 3/2 or 1.5; None for a division by zero or an exponent of many digits, which
    would be written out."""
    if re.search(r"e[+-]?\d{3}", number):
        return None
    try:
        return Fraction(number)
    except (ValueError, ZeroDivisionError):
        return None


def _ahead(text: str) -> Iterator[Statement]:
    """Statements made by a number followed by its word."""
    for match in _AHEAD.finditer(text):
        words = match[0]
        behind = text[match.end() :]
        if match["signed"]:
            if re.match(r"\s?(?:$|[.,;)\]]|\s(?:and|with|mult|spin|in)\b)", behind):
                yield _statement("charge", words, match["signed"])
        elif match["count"]:
            yield _statement("unpaired", words, match["count"])
        elif match["electrons"]:
            yield _statement("electrons", words, match["electrons"])
        elif not behind.lstrip().startswith(":"):
            quantity = KINDS[match["noun"]]
            yield _unread(quantity, words, f"does not say clearly which {quantity}")


def _unread(quantity: str, words: str, why: str) -> Statement:
    return Statement(quantity, words, certain=False, why=why)


def _spellings(one: Statement) -> Message:
    """What to write instead, in the comment line and as an option."""
    if len(one.meanings) > 1:
        written = ", ".join(f"{one.quantity}={value}" for value in sorted(one.meanings)[:-1])
        written += f" or {one.quantity}={max(one.meanings)}"
    elif one.meanings:
        written = f"{one.quantity}={next(iter(one.meanings))}"
    else:
        written = f"{one.quantity}=N"
    return _spelling(one.quantity, written)


def _spelling(quantity: str, written: str = "") -> Message:
    """How to write a charge or multiplicity that is understood."""
    if quantity == "electrons":
        quantity = "charge"
    return Message(
        f"write {written or f'{quantity}=N'} in the comment, or pass ", Option(quantity, N)
    )
