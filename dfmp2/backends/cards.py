"""NVIDIA cards according to their data sheets, and the best precision for pair energies on them.

    A100, A30, H100, H200, GH200    float64 on tensor cores at the rate of float32 without TF32
    every other card                float64 at 1/2 (V100, B200) to 1/64 (L4, RTX) of it

If float64 costs nothing, float32 with its certificate gains nothing. H800 and H20 are of the same
generation as H100, but their float64 rate is cut to 1/50 or less.

Sources: NVIDIA A100, A30, H100, H200 Tensor Core GPU data sheets, rows "FP64 Tensor Core" and
"FP32"; NVIDIA CUDA C++ programming guide, "Arithmetic instructions" for the other generations.
"""

from __future__ import annotations

from dataclasses import dataclass

FULL_FLOAT64 = ((8, 0), (9, 0))  # compute capabilities: A100 and A30; H100, H200 and GH200
CUT_FLOAT64 = ("H800", "H20")
# Number of (ia|jb) that a product may leave in device memory: 1 GiB in float64, or 1/128 of a
# smaller card.
MOST_PRODUCT = 1 << 27
SHARE_OF_PRODUCT = 128
# Elements of B along the edge of a tile, in units of that: rows of B streamed through the card take
# at least RESIDENT_EDGES edges.
EDGE_PRODUCTS = 2
RESIDENT_EDGES = 5
# Of the free memory; the rest is for the allocator, cuBLAS and products.
USABLE = 0.85


@dataclass(frozen=True, slots=True)
class Card:
    """One device.

    Attributes
    ----------
    name : name given by the driver
    capability : compute capability, (major, minor)
    total : bytes of device memory
    usable : bytes of it that a run may use
    """

    name: str
    capability: tuple[int, int]
    total: int
    usable: int

    @property
    def full_float64(self) -> bool:
        """Whether float64 products run at the rate of float32 without TF32."""
        words = self.name.upper().replace("-", " ").split()
        if any(word in CUT_FLOAT64 for word in words):
            return False
        return self.capability in FULL_FLOAT64

    @property
    def float64_rate(self) -> float:
        """Approximate operations per second of float64 products: half of the slowest data sheet."""
        return 1e13 if self.full_float64 else 2e11

    @property
    def precision(self) -> str:
        """What `precision="auto"` stands for on this card."""
        return "fp64" if self.full_float64 else "mixed"

    @property
    def product_elements(self) -> int:
        """Most elements of (ia|jb) in one product; depends on the card, not on its free memory."""
        return min(MOST_PRODUCT, self.total // (8 * SHARE_OF_PRODUCT))

    @property
    def edge_elements(self) -> int:
        """Most elements of B along the edge of a tile."""
        return EDGE_PRODUCTS * self.product_elements


def present_card(torch: object) -> Card:
    """The device that PyTorch uses now."""
    cuda = torch.cuda  # type: ignore[attr-defined]
    free, total = cuda.mem_get_info()
    return Card(
        name=str(cuda.get_device_name()),
        capability=tuple(cuda.get_device_capability()),
        total=int(total),
        usable=int(free * USABLE),
    )
