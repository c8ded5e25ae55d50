"""dma_copy: element moves between HBM and SBUF; a descriptor per contiguous run of the side with the shorter runs."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from dfmp2.backends.nki.interpreter.dtypes import cast
from dfmp2.backends.nki.interpreter.engine_arithmetic import working
from dfmp2.backends.nki.interpreter.members import Member
from dfmp2.backends.nki.interpreter.memory import describe, note_read, note_write
from dfmp2.backends.nki.interpreter.operands import dynamic, itemsize, reads
from dfmp2.backends.nki.interpreter.tensors import Tensor
from dfmp2.backends.nki.interpreter.trace import Instruction

if TYPE_CHECKING:
    from dfmp2.backends.nki.interpreter.core import Core

HARDWARE = Member("dge_mode", "hwdge")


def dma_copy(
    core: Core,
    *,
    dst: object,
    src: object,
    dge_mode: object = None,
    engine: object = None,
    oob_mode: object = None,
    priority: object = None,
) -> None:
    """dst = src, element by element, converted through float32 where the formats differ."""
    out, source = _side(core, dst, "dst"), _side(core, src, "src")
    if {out.storage.space, source.storage.space} != {"hbm", "sbuf"}:
        raise core.refuse("dma-spaces", f"{source.storage.space} -> {out.storage.space}")
    if out.shape != source.shape:
        raise core.refuse("dma-shape", f"src {source.shape}, dst {out.shape}")
    if priority is not None:
        raise core.refuse("dma-priority", f"priority={priority!r} on {core.settings.target}")
    if oob_mode is not None and oob_mode != Member("oob_mode", "error"):
        raise core.outside(f"dma_copy with oob_mode={oob_mode!r}")
    if dge_mode == HARDWARE:
        if core.settings.target == "gen2":
            raise core.refuse("dma-hwdge", "dge_mode=nisa.dge_mode.hwdge on gen2")
        if out.dtype != source.dtype:
            raise core.refuse("dma-cast", f"{source.dtype.name} -> {out.dtype.name} with hardware DGE")
    elif engine is not None and engine != Member("engine", "unknown"):
        raise core.refuse("engine", f"dma_copy with engine={engine!r} without hardware DGE")
    note_read(core, source)
    note_write(core, out)
    a, b = source.values(), out.values()
    if b is not None:
        if a is None:
            out.storage.array = None
        elif out.dtype == source.dtype:
            b[...] = a
        else:
            b[...] = cast(working(a, core.double), out.dtype, core.settings.storage)
    chip = out if out.storage.space == "sbuf" else source
    total = prod(out.shape)
    narrow = min(out.dtype.itemsize, source.dtype.itemsize)
    run = min(out.run(), source.run())
    core.issue(
        Instruction(
            "dma_copy",
            "dma",
            chip.elements,
            chip.partitions,
            itemsize(out, source),
            reads(source) + out.also_reads,
            (out.access,),
            dynamic=dynamic(out, source),
            bytes=total * itemsize(out, source),
            descriptors=total // run,
            run_bytes=run * narrow,
            line=core.place(),
        )
    )


def _side(core: Core, value: object, role: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise core.refuse("operand-type", f"{role} is {type(value).__name__}, not a tensor")
    if value.storage.space == "psum":
        raise core.refuse("dma-psum", f"{role} is {describe(value)}")
    return value
