"""A pair of basis sets written with brackets: cc-pv[tq]z is cc-pvtz and cc-pvqz, with cardinal numbers 3 and 4."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dfmp2.errors import InputError

CARDINALS = {"d": 2, "t": 3, "q": 4, "5": 5, "6": 6}
_BRACKET = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)")
# Name with n for the letter -> family whose formulas apply. Sets of another series have no published formula here.
FAMILIES = (
    (re.compile(r"cc-pvnz|cc-pv\(n\+d\)z"), "cc-pvnz"),
    (re.compile(r"aug-cc-pvnz|aug-cc-pv\(n\+d\)z"), "aug-cc-pvnz"),
    (re.compile(r"(aug-)?cc-pw?cvnz"), "cc-pcvnz"),
    (re.compile(r"(aug-)?cc-p(wc)?vnz-pp"), "cc-pvnz-pp"),
    (re.compile(r"def2-nzvpp?d?"), "def2"),
)
EXPECTED = "expected two neighbours of d, t, q, 5, 6 in brackets, such as cc-pv[tq]z, aug-cc-pv[dt]z or def2-[tq]zvpp"


@dataclass(frozen=True, slots=True)
class Bracket:
    """A pair of basis sets of one family.

    Attributes
    ----------
    text : as it was written
    names : of the smaller and the larger set
    cardinals : their cardinal numbers
    family : "cc-pvnz", "aug-cc-pvnz", "cc-pcvnz", "cc-pvnz-pp" or "def2"
    letters : the two letters, for fitting sets written with the same bracket
    """

    text: str
    names: tuple[str, str]
    cardinals: tuple[int, int]
    family: str
    letters: str


def parse_bracket(text: str) -> Bracket:
    """The pair of basis sets that `text` names.

    Raises
    ------
    InputError : no brackets, other letters than two neighbours, or a family without a published formula
    """
    match = _BRACKET.fullmatch(text.strip())
    if match is None:
        raise InputError(f"--basis {text[:60]!r}: {EXPECTED} (quote it, brackets mean something to the shell)")
    before, letters, after = (part.lower() for part in match.groups())
    numbers = [CARDINALS.get(letter) for letter in letters]
    if len(letters) != 2 or None in numbers:
        raise InputError(f"--basis {text[:60]!r}: [{letters[:20]}] in brackets: {EXPECTED}")
    lower, upper = CARDINALS[letters[0]], CARDINALS[letters[1]]
    if upper != lower + 1:
        raise InputError(f"--basis {text[:60]!r}: [{letters}] are not neighbours in rising order; {EXPECTED}")
    pattern = f"{before}n{after}"
    family = next((name for form, name in FAMILIES if form.fullmatch(pattern)), None)
    if family is None:
        raise InputError(
            f"--basis {text[:60]!r}: no extrapolation formula is published for this series: {EXPECTED} "
            "(also cc-pcv, cc-pwcv, (n+d) and -pp sets)"
        )
    if family == "def2" and (lower, upper) != (3, 4):
        raise InputError(f"--basis {text[:60]!r}: of the def2 sets only [tq] can be extrapolated: use def2-[tq]zvpp")
    return Bracket(
        text, (f"{before}{letters[0]}{after}", f"{before}{letters[1]}{after}"), (lower, upper), family, letters
    )


def expand(name: str | None, bracket: Bracket, option: str) -> tuple[str | None, str | None]:
    """A fitting set for either basis: one with the same brackets, one name for both, or None.

    Raises
    ------
    InputError : other brackets than those of the basis
    """
    if name is None or "[" not in name:
        return name, name
    match = _BRACKET.fullmatch(name.strip())
    if match is None or match[2].lower() != bracket.letters:
        raise InputError(
            f"{option} {name[:60]!r}: expected [{bracket.letters}] as in --basis {bracket.text}, or no brackets"
        )
    return f"{match[1]}{bracket.letters[0]}{match[3]}", f"{match[1]}{bracket.letters[1]}{match[3]}"
