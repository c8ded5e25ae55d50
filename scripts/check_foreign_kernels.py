#!/usr/bin/env python3
"""Run NKI kernels that others wrote in the interpreter and compare them with NumPy.

    python scripts/check_foreign_kernels.py FOLDER                  the public kernels known here, in a checkout of them
    python scripts/check_foreign_kernels.py FOLDER --cases FILE     those that a Python file describes (CASES)

Files of the checkout, and FILE, are executed as Python programs. Rules of ours that are narrower than the documentation
do not hold for them. Exit code 8 when a kernel differs from its reference, 6 when one is refused or breaks a documented
rule, 3 for a folder or file that is not there.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent
if str(SCRIPTS) not in sys.path:
    sys.path.insert(0, str(SCRIPTS))

from foreign_kernels.cases import Finding, cases_of, commit_of, examine  # noqa: E402

from dfmp2.errors import ComparisonFailed, Dfmp2Error, KernelError  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], epilog="Exit codes: 0, 3, 6, 8."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="checkout of the kernels")
    parser.add_argument("--cases", type=Path, metavar="FILE", help="Python file with CASES, dicts of file, kernel, "
                        "inputs and reference (default: the kernels known here)")  # fmt: skip
    parser.add_argument(
        "--target", metavar="trn1|trn2", help="chip (default: the one each kernel was written for)"
    )
    parser.add_argument("--json", action="store_true", help="print an object")
    given = parser.parse_args(arguments)
    try:
        asked = cases_of(given.folder, given.cases)
        findings = [examine(given.folder, case, given.target) for case in asked]
        commit = commit_of(given.folder)
        if given.json:
            print(
                json.dumps(
                    {"commit": commit, "kernels": [as_dict(found) for found in findings]}, indent=2
                )
            )
        else:
            print(as_text(findings, commit), end="")
        wrong = sum(found.verdict != "runs" for found in findings)
        if wrong:
            differ = any(found.verdict == "differs" for found in findings)
            failure = ComparisonFailed if differ else KernelError
            raise failure(
                f"{wrong} of {len(findings)} kernels differ, are refused or break a documented rule"
            )
    except Dfmp2Error as error:
        print(f"check_foreign_kernels: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def as_dict(found: Finding) -> dict[str, Any]:
    """One kernel of --json."""
    return {
        "file": found.case.file,
        "kernel": found.case.kernel,
        "note": found.case.note,
        "target": found.target,
        "verdict": found.verdict,
        "error": None if found.refusal is not None else found.error,
        "tolerance": found.case.tolerance,
        "rules": [one.rule for one in found.broken],
        "refusal": None if found.refusal is None else str(found.refusal),
        "sbuf_bytes": found.sbuf,
        "moved_bytes": found.moved,
    }


def as_text(findings: Sequence[Finding], commit: str) -> str:
    """The table: error relative to the largest element, bytes per partition."""
    lines = [f"commit {commit}"] if commit else []
    lines.append(f"{'kernel':<32}{'chip':<6}{'error':>8}{'SBUF':>8}{'by DMA':>8}  verdict; rules")
    for found in findings:
        name = found.case.kernel + (f" ({found.case.note})" if found.case.note else "")
        numbers = f"{'-':>8}{'-':>8}{'-':>8}"
        if found.refusal is None:
            numbers = f"{found.error:>8.1e}{found.sbuf:>8}{found.moved:>8}"
        rules = ", ".join(one.rule for one in found.broken if one.rule not in found.verdict)
        row = (
            f"{name:<32}{found.target:<6}{numbers}  {found.verdict}{f'; {rules}' if rules else ''}"
        )
        lines.append(textwrap.fill(row, 80, subsequent_indent=" " * 64, break_on_hyphens=False))
    refused = [
        f"{found.case.kernel}: {found.refusal}" for found in findings if found.refusal is not None
    ]
    lines += [
        textwrap.fill(one, 80, subsequent_indent="  ", break_on_hyphens=False) for one in refused
    ]
    runs = sum(found.verdict == "runs" for found in findings)
    return "\n".join([*lines, f"{runs} of {len(findings)} run and agree with NumPy"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
