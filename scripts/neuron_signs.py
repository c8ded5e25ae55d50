"""What the output of a failed step means, and what to do next: a table, first match first.

The texts are those that the released packages and the runtime print, as far as their public sources tell: nrtpy's
pages and nrt-troubleshoot.rst of aws-neuron-sdk, spike_model.py of nkipy, docs/neuron-rules.md of
sample-spectral-dns-on-aws-neuron; the others are dfmp2's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ARCHIVE = "send the archive"


@dataclass(frozen=True, slots=True)
class Sign:
    """A pattern in a step's output.

    Attributes
    ----------
    pattern : regular expression; what : the diagnosis, with the groups of the match; then : what to do next
    stops : nothing more is launched on this device
    """

    pattern: str
    what: str
    then: str
    stops: bool = False


SIGNS = (
    # machine and packages
    Sign(r"there is no Neuron device", "no Neuron device", "start a trn1 or trn2 instance; --dry-run shows the steps"),
    Sign(r"from PyPI is a placeholder", "a package is PyPI's placeholder", "install it from AWS's own index"),
    Sign(r"neuronx-cc[^;:]* cannot be found on PATH|can't open file '[^']*None'",
         "neuronx-cc is not on PATH, so that the driver runs `python None`",
         "export PATH=BIN OF THE ENVIRONMENT WITH neuronx-cc:$PATH and run this again"),
    Sign(r"'import (\w+)[^']*' fails \((.*?)\)", "{0} does not import: {1}",
         "reinstall it; LD_LIBRARY_PATH needs /opt/aws/neuron/lib"),
    # compilation
    Sign(r"unrecognized arguments: (.*?)(?: \(all of it| *$)", "neuronx-cc does not know {0}",
         "take it out of NEURON_CC_FLAGS; if it is --auto-cast=none, float32 is at stake: leave it out in "
         "compiler_flags (launch/environment.py) only where neuronx-cc's own default is none, and watch P2"),
    Sign(r"NCC_IDRV077", "neuronx-cc refuses a folder of artifacts that is not empty",
         "remove what it names; compile_child.py makes a fresh one for each way in, so that another may be at work: "
         + ARCHIVE),
    Sign(r"NEFF arch: (\w+), instance arch: (\w+)",
         "a program compiled for {0} was loaded on {1}: the target did not reach the compiler",
         "unset NEURON_PLATFORM_TARGET_OVERRIDE, remove DIR/neff, run this again; if it stays, name the target in "
         "compile_child.py for the way in that the log names"),
    Sign(r"has no attribute '(\w+)'", "this release of nki has no {0}",
         "use NKI 0.6 (SDK 2.32), whose names the kernels were checked against; else replace it in kernels/"),
    Sign(r"(NCC_[A-Z]+\d+)", "the compiler refuses a kernel: {0}", f"{ARCHIVE}: its failed.log names the instruction"),
    Sign(r"the compiler ended with|left \d+ NEFF files", "the compiler failed in a way nobody has met",
         f"{ARCHIVE}: failed.log is all it said"),
    # runtime
    Sign(r"NRT_EXEC_HW_ERR_DMA_ABORT|in an abort state", "the device aborted a transfer: nothing it answers counts",
         "stop and start the instance, or take another (AWS's advice); if the same step aborts again, a tensor or an "
         f"offset of ours is at fault: {ARCHIVE}", stops=True),
    Sign(r"NRT_EXEC_HW_ERR\w*|NRT_TIMEOUT|UNRECOVERABLE", "the device reported a fault or did not answer",
         "take another instance (neuron-ls, dmesg) and run this again", stops=True),
    Sign(r"belongs to another process", "another process holds the NeuronCore",
         "end it (neuron-ls names it), or name a free core in NEURON_RT_VISIBLE_CORES"),
    Sign(r"does not give back what was written", "the device does not give back what was written to it",
         "stop and start the instance", stops=True),
    Sign(r"has taken the device CPU", "torch-xla has taken the CPU",
         "unset PJRT_DEVICE; look at the import of libneuronxla"),
    Sign(r"takes (\[.*?\]) and gives (\[.*?\])|Unknown (?:in|out)put\(s\) (\{.*?\})",
         "the program and dfmp2 call its tensors by different names: {0} {1} {2}",
         f"map the names in Loaded (launch/executors.py), in the order of the kernel's arguments: {ARCHIVE}"),
    Sign(r"(Input|Output) \w+: expected dtype (\S+), got (\S+?)[:,;]",
         "the runtime refuses a tensor of type {2}, and names {1} for it",
         f"name_type (launch/executors.py) settles void types only: {ARCHIVE}"),
    Sign(r"has no setter", "the runtime refuses a new type for a tensor that stayed on the device",
         "nothing for --transform host, the default; for --transform device copy the output on the host in Loaded"),
    Sign(r"NRT_EXEC_OOB", "a kernel reached outside a tensor", f"{ARCHIVE}: an address is wrong"),
    Sign(r"NRT_RESOURCE", "device memory does not suffice", "one process for each core, or a smaller shape"),
    # numbers
    Sign(r"came back as (\S+) Eh and is (\S+) Eh",
         "the guard refused a wrong pair ({0} for {1} Eh): there is no energy",
         "run this with --only facts: P1, P3 and P10 name the instruction"),
    Sign(r"met NaN or infinite numbers", "the device met NaN", "run this with --only facts"),
    Sign(r"the energy is off by (\S+) Eh", "an energy is off by {0} Eh: its time means nothing",
         "run this with --only facts"),
    Sign(r"(\d+) of (\d+) blocks agree", "only {0} of {1} blocks of pair terms are right",
         f"the first that fails names the shape: {ARCHIVE}"),
)  # fmt: skip
BY_CODE = {
    2: ("this script and the command do not fit each other", ARCHIVE),
    5: ("a numerical guard tripped: there is no result", "run this with --only facts"),
    6: ("something is missing, or a kernel was refused", "do what the last line says"),
    7: ("memory or hardware", "do what the last line says"),
    8: ("numbers differ", "run this with --only facts"),
    124: ("no answer in time", f"run this again with more --minutes; if it hangs, {ARCHIVE}"),
}


def diagnose(text: str, code: int) -> Sign:
    """What a step that ended with `code` has met, by its output."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    for line in reversed(lines):  # the last message is the one that ended it
        for sign in SIGNS:
            match = re.search(sign.pattern, line)
            if match:
                groups = [group or "" for group in match.groups()] + [""] * 3
                return Sign(
                    sign.pattern, " ".join(sign.what.format(*groups).split()), sign.then, sign.stops
                )
    what, then = BY_CODE.get(code, (f"not foreseen (exit code {code})", ARCHIVE))
    return Sign("", f"{what}: {lines[-1][:300]}" if lines else what, then)
