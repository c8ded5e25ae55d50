"""The probes: P1 to P9 ask what documentation leaves open, P10 to P12 whether what others met holds here."""

from __future__ import annotations

from neuron_probes import arithmetic, launching, platform, rates
from neuron_probes.probe import Probe

PROBES = (
    Probe("P1", "Does the Tensor Engine keep products of 16-bit operands whole?", arithmetic.product_width,
          arithmetic.decide_width),
    Probe("P2", "What does a float32 product cost, how exact is it, what do the hints change?", rates.products,
          rates.decide_products),
    Probe("P3", "How exact are reciprocal, sum with a column, square and rsqrt between 0.1 and 300?",
          arithmetic.functions, arithmetic.decide_functions),
    Probe("P4", "What do elementwise instructions cost, and is an operand in PSUM free?", rates.chains,
          rates.decide_chains),
    Probe("P5", "How fast are loads in long and in short runs, and who should make their descriptors?",
          rates.transfers, rates.decide_transfers),
    Probe("P6", "Does dispatch hide behind the call before it, and is the Tensor Engine kept busy?", launching.queue,
          launching.decide_queue),
    Probe("P7", "How many programs are compiled, and is one loaded once and called many times?", launching.programs,
          launching.decide_programs),
    Probe("P8", "How long and how much memory does compiling 6, 25 and 85 thousand statements take?",
          launching.compilation, launching.decide_compilation),
    Probe("P9", "Does a hardware loop with a counter in SBUF work?", arithmetic.counted_loop, arithmetic.decide_loop),
    Probe("P10", "Is the bias of an activation added?", platform.biases, platform.decide_biases),
    Probe("P11", "From which size on do tiles that transfers have written slow down streaming?", platform.residents,
          platform.decide_residents),
    Probe("P12", "How slow are the first seconds after the runtime has started?", platform.ramp, platform.decide_ramp),
)  # fmt: skip
