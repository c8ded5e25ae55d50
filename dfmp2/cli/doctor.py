"""`dfmp2 doctor`: is this installation, this machine and this folder fit for a run?"""

from __future__ import annotations

import json
import os

import click

from dfmp2.cli.options import AS_JSON
from dfmp2.host.resources import usable_cores
from dfmp2.host.threads import set_environment
from dfmp2.molecule.text import printable

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command("doctor")
@AS_JSON
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Check installation, machine and working directory; one fix line per problem.

    Ends with a real run of a tiny molecule. Exit code 0 when the default run works, else the one it would have.
    """
    from dfmp2.validation.doctor import examine, exit_code, observe

    surroundings = observe()
    set_environment(usable_cores())  # as a run does, before NumPy and PySCF are loaded
    findings = examine(surroundings)
    code = exit_code(findings)
    if as_json:
        checks = [{name: getattr(found, name) for name in ("name", "status", "detail", "fix")} for found in findings]
        click.echo(json.dumps({"works": code == 0, "exit_code": code, "checks": checks}, indent=2))
        ctx.exit(code)
    for finding in findings:
        status = f"{finding.status:<5}"
        shown = status if os.environ.get("NO_COLOR") else click.style(status, fg=COLOURS[finding.status])
        click.echo(f"{shown}{finding.name:<21}{printable(finding.detail)}")
        if finding.fix:
            click.echo(f"{'':5}{'':21}fix: {printable(finding.fix)}")
    warnings = sum(finding.status == "warn" for finding in findings)
    verdict = "the default run works" if code == 0 else f"the default run does not work (exit code {code})"
    click.echo(f"dfmp2 doctor: {verdict}, {warnings} warning{'s' * (warnings != 1)}")
    ctx.exit(code)
