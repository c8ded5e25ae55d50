"""What an SCF with its fitted integrals on disk may use; free of PySCF, so that it can be planned with."""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2.scratch.space import Space


@dataclass(frozen=True, slots=True)
class Room:
    """Where the integrals go and what may be held of them.

    Attributes
    ----------
    space : scratch space of the run
    pair_bytes : of raw integrals per block of pairs when they are made (one shell at least)
    read_bytes : of all blocks of P together when they are read (a few rows at least)
    """

    space: Space
    pair_bytes: int
    read_bytes: int
