"""The chips as the documentation has them, as literal tables: clocks, memories, rates of transfers.

Sources: the Trainium/Inferentia2 and Trainium2 architecture guides of the AWS Neuron documentation
(engine specifications: clocks, SBUF, ports), its DMA bandwidth guide, trainium2.rst and
logical-neuroncore-config.rst. At four passes these clocks are 22.9 and 19.7 float32 TFLOPS a core;
the guides say 23 and 20. Two cores share a bank of 24 GiB on trn2, of which each has half here.
"""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2.errors import InputError
from dfmp2.errors.messages import Option
from dfmp2.trainium.interpreter.rules import Settings, Target


@dataclass(frozen=True, slots=True)
class Chip:
    """One NeuronCore of a chip.

    Attributes
    ----------
    name : "trn1" or "trn2"
    target : the generation that kernels are written for
    tensor, vector, scalar : clocks of the engines, GHz
    dma : bytes per ns of one DMA queue
    hbm : bytes of device memory per core
    cores : physical cores of a chip
    shared_port : whether Vector and Scalar Engine share one PSUM port
    fast_transpose : whether transpose mode halves the four passes of a float32 product
    """

    name: str
    target: Target
    tensor: float
    vector: float
    scalar: float
    dma: float
    hbm: int
    cores: int
    shared_port: bool
    fast_transpose: bool

    @property
    def sbuf(self) -> int:
        """Usable bytes per partition."""
        return Settings(target=self.target).sbuf_limit


CHIPS = {
    "trn1": Chip(
        name="trn1",
        target="gen2",
        tensor=2.8,
        vector=1.12,
        scalar=1.4,
        dma=17.0,
        hbm=16 * 1024**3,  # 32 GiB for two cores
        cores=2,
        shared_port=True,
        fast_transpose=False,
    ),
    "trn2": Chip(
        name="trn2",
        target="gen3",
        tensor=2.4,
        vector=0.96,
        scalar=1.2,
        dma=23.0,
        hbm=12 * 1024**3,  # 96 GiB for eight cores
        cores=8,
        shared_port=False,
        fast_transpose=True,
    ),
}


def find_chip(name: str) -> Chip:
    """The chip of that name.

    Raises
    ------
    InputError : there is none
    """
    if name not in CHIPS:
        raise InputError(
            Option("target", name), f": unknown chip: expected one of {', '.join(CHIPS)}"
        )
    return CHIPS[name]
