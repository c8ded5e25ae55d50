"""The text of `--help`, and messages about unknown commands and options."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any, ClassVar, NoReturn

import click

from dfmp2.units import counted_text

CLOSE = 0.7  # similarity (difflib) above which a name is suggested
COLUMN = 20  # characters of an option and its metavar
ALL_COLUMN = 30  # the same for --help-all
LINES = 45  # of --help, which omits more options if it would be longer
EVERY = "dfmp2.help_all"
BEGUN = "dfmp2.begun"
SHOWN = 3  # files named in the first line of a command

WISHES = {  # commands of other programs -> the equivalent here
    **dict.fromkeys(
        ("mp2", "sp", "single-point", "singlepoint", "calc", "compute"),
        "dfmp2 run computes an energy",
    ),
    **dict.fromkeys(
        ("opt", "geomopt", "geometry", "relax"),
        "dfmp2 optimize finds a minimum or a transition state",
    ),
    **dict.fromkeys(("ts", "neb"), "dfmp2 optimize --transition-state finds a saddle point"),
    **dict.fromkeys(
        ("path", "rpath", "reaction-path", "mep"),
        "dfmp2 irc follows a reaction path from its transition state",
    ),
    **dict.fromkeys(
        ("freq", "frequency", "hess", "hessian", "vib", "ir"), "dfmp2 frequencies computes them"
    ),
    **dict.fromkeys(
        ("grad", "force", "forces"), "dfmp2 gradient computes the gradient; forces are its negative"
    ),
    **dict.fromkeys(
        ("bsse", "counterpoise", "dimer"),
        "dfmp2 interaction corrects for the basis set superposition",
    ),
    **dict.fromkeys(
        ("dipole", "charges"), "dfmp2 run --properties computes dipole moment and charges"
    ),
    **dict.fromkeys(
        ("molden", "cube", "trexio"), "dfmp2 export --to NAME writes it from a stored result"
    ),
    **dict.fromkeys(
        ("info", "test", "check"),
        "dfmp2 doctor checks the installation, dfmp2 validate the energies",
    ),
    **dict.fromkeys(
        ("ccsd", "dft", "hf", "scf"),
        "dfmp2 methods lists what is computed; E(HF) is part of every run",
    ),
    "print": "dfmp2 show prints a stored result",
    "timeline": "dfmp2 kernels cost names the busy time of every engine; schedules are no longer "
    "drawn",
    "published": "the figures are on the page project/trainium/published of the documentation; "
    "dfmp2 kernels cost predicts the time of any shape",
}


def refuse_unknown(kind: str, name: str, known: list[str], ctx: click.Context | None) -> NoReturn:
    """Raise for an unknown command or option, suggesting alternatives.

    Raises
    ------
    click.UsageError : always
    """
    from dfmp2.errors.wishes import way_out_of_option

    if kind == "option":
        hint: str = way_out_of_option(name)
    else:
        hint = WISHES.get(name, "")
    if name in known or not hint:
        near = get_close_matches(name, known, 2, CLOSE)
        if near:
            hint = f"did you mean {' or '.join(near)}?"
        else:
            hint = ""
    raise click.UsageError(f"No such {kind} '{name}'{f': {hint}' if hint else ''}", ctx)


def _with_way_out(error: click.UsageError) -> click.UsageError:
    """The error, with alternatives for an unknown method."""
    from dfmp2.errors.wishes import way_out_of_method

    if not isinstance(error, click.BadParameter) or error.param is None:
        return error
    given = re.match("'([^']*)' is not one of", error.message)
    if error.param.name != "method" or given is None:
        return error
    way_out = way_out_of_method(given[1])
    if not way_out or "; " in error.message:  # which already says it
        return error
    return click.BadParameter(
        f"{error.message.rstrip('.')}: {way_out}", error.ctx, error.param, error.param_hint
    )


def _show_every(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[EVERY] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    help="Show rare options too.",
    callback=_show_every,
)


class GroupedCommand(click.Command):
    """A command whose --help lists the usual options by group; --help-all has all of them."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        for one in self.params:  # so that shells complete file names
            if isinstance(one, click.Argument):
                says = one.metavar or "FILE"
            else:
                says = one.make_metavar(click.Context(self))
            if one.type is click.STRING and any(
                word in says for word in ("FILE", ".h5", "DIR", "MANIFEST")
            ):
                one.type = click.Path(readable=False)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters of the command, and --help-all."""
        *own, last = super().get_params(ctx)
        return [*own, HELP_ALL, last]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments; for an unknown option, raise with alternatives."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = [
                name
                for one in self.params
                if isinstance(one, click.Option) and not one.hidden
                for name in one.opts
            ]
            refuse_unknown("option", error.option_name, known, ctx)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # which names the command for --help
            raise _with_way_out(error) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options of each group under its name."""
        from dfmp2.cli.options import GROUPS, group_of

        every = ctx.meta.get(EVERY, False)
        options = [
            one for one in self.get_params(ctx) if isinstance(one, click.Option) and not one.hidden
        ]
        formatter.write_paragraph()
        column = ALL_COLUMN if every else COLUMN
        before = formatter.getvalue().count("\n")
        for most in (2,) if every else (1, 0):
            part = ctx.make_formatter()
            groups: dict[str, list[tuple[str, str]]] = {}
            for one in options:
                heading, rank = group_of(one)
                if rank <= most:
                    names, says = one.get_help_record(ctx) or ("", "")
                    groups.setdefault(heading, []).append((names.ljust(column), says))
            for heading in filter(groups.__contains__, GROUPS):
                part.write_heading(click.style(heading, bold=True))
                part.indent()
                part.write_dl(groups[heading], col_max=column)
                part.dedent()
            if (
                left_out := len(options) - 1 - sum(map(len, groups.values()))
            ) > 0:  # not counting --help-all itself
                part.write_text(
                    f"{counted_text(left_out, 'option')} more: {ctx.command_path} --help-all"
                )
            if before + part.getvalue().count("\n") <= LINES:
                break
        formatter.write(part.getvalue())


class AnnouncedCommand(GroupedCommand):
    """A command that computes: it prints a line before loading libraries, which may take
    seconds."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; --quiet and --json suppress the line."""
        from dfmp2.cli.console import Console

        named = [
            ctx.params[one.name]
            for one in self.params
            if isinstance(one, click.Argument) and one.name
        ]
        named += [ctx.params.get(name) for name in ("prepared", "basis", "lane")]
        words = [_files(one) if isinstance(one, tuple) else str(one) for one in named if one]
        shown = ", ".join("standard input" if word == "-" else word for word in words)
        ctx.meta[BEGUN] = f"{ctx.command_path}{': ' if shown else ''}{shown}"
        quiet = ctx.params.get("quiet") or ctx.params.get("as_json")  # an error is the only line
        Console(quiet=bool(quiet), log=None).note(ctx.meta[BEGUN])
        return super().invoke(ctx)


def _files(names: tuple[str, ...]) -> str:
    """The first names, and the number of further ones."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


class CommandGroup(click.Group):
    """A group that supports `help COMMAND`, and suggests alternatives for unknown commands."""

    command_class: ClassVar[type[click.Command] | None] = GroupedCommand  # type: ignore[misc] # of click, per instance

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments, with `help COMMAND` replaced by `COMMAND --help`; unknown options are
        handled as by a command.

        Without arguments, the help is printed above the error.
        """
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True, color=ctx.color)
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            refuse_unknown("option", error.option_name, [], ctx)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The requested command; raises if it does not exist."""
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            refuse_unknown("command", args[0], self.list_commands(ctx), ctx)
        return super().resolve_command(ctx, args)
