"""Which energy a program means by the name of a method: MP2 or one of its spin-component scalings."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from dfmp2.errors import InputError
from dfmp2.options import Options
from dfmp2.result import MP2Result

# Method -> the correlation energy of a result it stands for. The MP2 step is always density-fitted, so a prefix that
# says so may be left out.
CORRELATION_ENERGIES = {
    "mp2": "mp2_correlation_energy",
    "scs-mp2": "scs_mp2_correlation_energy",
    "sos-mp2": "sos_mp2_correlation_energy",
    "custom-scs-mp2": "scaled_mp2_correlation_energy",
}
PREFIXES = ("df-", "ri-")
CUSTOM = "custom-scs-mp2"


@dataclass(frozen=True, slots=True)
class Method:
    """A method by its plain name, a key of CORRELATION_ENERGIES."""

    name: str

    def correlation_energy(self, result: MP2Result) -> float:
        """Its correlation energy, Eh."""
        return float(getattr(result, CORRELATION_ENERGIES[self.name]))

    def total_energy(self, result: MP2Result) -> float:
        """E(HF) plus its correlation energy, Eh."""
        return result.scf_total_energy + self.correlation_energy(result)


def read_method(text: object, options: Options) -> Method:
    """The method of a name in any case, with or without df- or ri-.

    Raises
    ------
    InputError : another method, or one that does not go with the factors `os_scale` and `ss_scale`
    """
    given = text.strip().lower() if isinstance(text, str) else ""
    name = next((given.removeprefix(prefix) for prefix in PREFIXES if given.startswith(prefix)), given)
    if name not in CORRELATION_ENERGIES:
        close = difflib.get_close_matches(name, CORRELATION_ENERGIES, n=1)
        advice = f"did you mean {close[0]}? " if close else ""
        raise InputError(f"method {text!r}: {advice}expected one of {', '.join(CORRELATION_ENERGIES)}")
    factors = options.os_scale is not None or options.ss_scale is not None
    if factors != (name == CUSTOM):
        raise InputError(
            f"method {CUSTOM} needs os_scale or ss_scale"
            if name == CUSTOM
            else f"os_scale and ss_scale belong to method {CUSTOM}, not to {name}: name it, or leave them out"
        )
    return Method(name)
