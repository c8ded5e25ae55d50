"""Typography of names, units and numbers on a page, in one place for all of its modules.

Results, commands and JSON are plain ASCII. A page shows cm⁻¹, ⟨S²⟩, RHF, cc-pVDZ, 23 Nov 2026, NH₃,
and −7.7 × 10⁻⁶ for -7.7e-06; copied text becomes ASCII again (`page.js`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache

SUPERSCRIPTS = str.maketrans("-+0123456789", "⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹")
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
WORDS = {  # as in the program -> as on the page
    "<S^2>": "⟨S²⟩",
    "+-": "±",
    "->": "→",
    "<-": "←",
    "angstrom": "Å",
    "degree": "°",
    "degrees": "°",
    "Loewdin": "Löwdin",
    "log10": "log₁₀",
    "sqrt(u)": "√u",
    "cp": "CP",
    "cp-corrected": "CP-corrected",
    "cpu": "CPU",
    "cuda": "CUDA",
    "gibbs": "Gibbs",
    "kappa": "κ",
    "kappa-MP2": "κ-MP2",
    **{
        name: name.upper()
        for name in ("rhf", "uhf", "rohf", "rks", "uks", "roks", "scf", "exx", "mp2")
    },
    **{name: name.upper() for name in ("b3lyp", "blyp", "pbe", "pbe0", "tpss", "irc", "smd")},
}
QUANTITIES = (  # parts of the names of a study's numbers, longest first -> short ones
    ("uncorrected interaction energy", "without CP"),
    ("cp corrected interaction energy", "CP"),
    ("counterpoise correction", "CP correction"),
    ("mp2 same spin correlation", "same spin"),
    ("mp2 opposite spin correlation", "opposite spin"),
    ("scs mp2 correlation", "SCS-MP2"),
    ("sos mp2 correlation", "SOS-MP2"),
    ("scaled mp2 correlation", "scaled MP2"),
    ("mp2 correlation", "MP2 correlation"),
    ("optimized total energy", "energy of the last geometry"),
    ("max gradient", "largest gradient"),
    ("zero point energy", "zero-point energy"),
)
SCHEMES = ("without CP", "CP correction", "CP")
ELEMENT = re.compile(r"([A-Z][a-z]?)(\d*)")
# by increasing electronegativity; metals come first
SERIES = (
    "",
    "B",
    "Si",
    "Sb",
    "As",
    "P",
    "N",
    "H",
    "Te",
    "Se",
    "S",
    "At",
    "I",
    "Br",
    "Cl",
    "O",
    "F",
)
WORD = re.compile(
    r"(?<![\w.+<>-])(?:"
    + "|".join(re.escape(word) for word in sorted(WORDS, key=len, reverse=True))
    + r")(?![\w+>-]|\.\w)"
)
OPTION = re.compile(r"((?<![\w-])--[a-z][a-z-]*+(?: [^\s,;:()]+)?)")  # with the word after it
POWER = re.compile(r"(?<=[A-Za-zÅ°0])\^(-?\d+)")
EXPONENT = re.compile(r"(?<![A-Za-z_])(\d+(?:\.\d+)?)e([+-])0*(\d{1,3})\b")
NEGATIVE = re.compile(r"(?<![\w.)\]+-])-(?=\d)")
EITHER = re.compile(r"\+-(?=\d)")
DATE = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?")
DUNNING = re.compile(
    r"(?<![\w.-])((?:(?:d-|heavy-)?aug-|(?:apr|may|jun|jul)-)?)cc-p(w?c)?v"
    r"(\([dtq56]\+d\)|\[?[dtq56]{1,2}\]?)z((?:-[a-z0-9]++)*+)(?![\w(-]|\.\w)"
)
KARLSRUHE = re.compile(
    r"(?<![\w.-])def2-(m?)(svpd?|[tq]zvpp?d?|universal)((?:-[a-z0-9]++)*+)(?![\w(-]|\.\w)"
)
POPLE = re.compile(r"(?<![\w.-])(sto-\d|\d-\d{2,3}\+{0,2})g(\*{0,2})(?![\w-]|\.\w)")


# Nine of ten texts of a page are the same few names of tags and units, or zeros.
@lru_cache(10_000)
def written(text: str) -> str:
    """A text of the program with names, units, dates and numbers as people write them, but for
    options and their values."""
    parts = OPTION.split(text)  # every second one is an option
    return "".join(part if place % 2 else _typeset(part) for place, part in enumerate(parts))


def _typeset(text: str) -> str:
    text = DATE.sub(_date, text)
    text = DUNNING.sub(_dunning, text)
    text = KARLSRUHE.sub(_karlsruhe, text)
    text = POPLE.sub(lambda match: f"{match[1].upper()}G{match[2]}", text)
    text = WORD.sub(lambda match: WORDS[match[0]], text)
    text = text.replace(" - ", f" {MINUS} ")
    text = EITHER.sub("±", text)
    text = POWER.sub(lambda match: match[1].translate(SUPERSCRIPTS), text)
    text = EXPONENT.sub(_power_of_ten, text)
    return NEGATIVE.sub(MINUS, text)


def formula(text: str, charge: int = 0) -> str:
    """A formula in Hill order as it is usually written, and its charge: NH₃, NH₄⁺, SO₄²⁻."""
    real, ghost, rest = text.partition(" + ghost ")
    said = _usual(real)
    if charge:
        sign = "+" if charge > 0 else "-"
        number = ""
        if abs(charge) > 1:
            number = str(abs(charge))
        said += f"{number}{sign}".translate(SUPERSCRIPTS)
    return f"{said}{ghost}{_usual(rest)}"


def _usual(text: str) -> str:
    """One formula, e.g. H3N as NH₃; with carbon the order of Hill is the usual one.

    Without carbon, elements follow the electronegativity series of IUPAC's Red Book (2005), table
    VI; hydrogen comes first if there are two others, as in H₂SO₄.
    """
    parts = ELEMENT.findall(text)
    symbols = [symbol for symbol, _ in parts]
    if "".join(map("".join, parts)) != text or "C" in symbols:
        return text.translate(SUBSCRIPTS)
    if text in ("HO", "OH"):
        return "OH"

    def place(part: tuple[str, str]) -> int:
        symbol = part[0]
        if symbol == "H" and len(parts) > 2:
            return -1
        if symbol not in SERIES:
            return 0
        return SERIES.index(symbol)

    return "".join(map("".join, sorted(parts, key=place))).translate(SUBSCRIPTS)


def with_formulas(text: str, formulas: Iterable[str]) -> str:
    """The text with subscripts in these formulas."""
    for one in sorted(set(formulas), key=len, reverse=True):
        if one:
            text = re.sub(rf"(?<![\w.-]){re.escape(one)}(?![\w-]|\.\w)", formula(one), text)
    return text


def quantity(name: str) -> str:
    """The short name of a number of a study, e.g. "opposite spin, CP"."""
    for long, short in QUANTITIES:
        name = name.replace(long, short)
    for scheme in SCHEMES:
        if name == scheme:
            return f"total, {scheme}"
        if name.endswith(f" {scheme}"):
            return f"{name.removesuffix(scheme).rstrip()}, {scheme}"
    return name


def _date(match: re.Match[str]) -> str:
    try:
        time = datetime.fromisoformat(match[0])
    except ValueError:
        return match[0]
    zone = time.strftime("%z").replace("+0000", "UTC")
    return f"{time.day} {time:%b %Y, %H:%M} {zone}".rstrip()


def _power_of_ten(match: re.Match[str]) -> str:
    if match[3] == "0":
        return match[1]
    sign = match[2].replace("+", "")
    return f"{match[1]} {TIMES} 10{f'{sign}{match[3]}'.translate(SUPERSCRIPTS)}"


def _dunning(match: re.Match[str]) -> str:
    core = (match[2] or "").replace("c", "C")
    size = match[3].upper().replace("+D", "+d")
    return f"{match[1]}cc-p{core}V{size}Z{match[4].upper()}"


def _karlsruhe(match: re.Match[str]) -> str:
    kind = match[2]
    if kind != "universal":
        kind = kind.upper()
    return f"def2-{match[1]}{kind}{match[3].upper()}"
