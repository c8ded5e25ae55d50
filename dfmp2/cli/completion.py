"""`dfmp2 completion`: names of commands, options, choices and files, completed by the shell."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from dfmp2.cli.help import GroupedCommand
from dfmp2.errors import InputError, ResourceError

SHELLS = ("bash", "zsh", "fish")
START = "whence compdef >/dev/null || { autoload -Uz compinit && compinit; }\n"  # zsh completes nothing without it


@click.command("completion", cls=GroupedCommand)
@click.argument("shell", required=False, type=click.Choice(SHELLS))
@click.option("--install", is_flag=True, help="Write the script and let the shell load it.")
def completion(shell: str | None, install: bool) -> None:
    """Print what lets SHELL (default: that of $SHELL) complete names; --install puts it in place.

    bash and zsh get one line at the end of ~/.bashrc or ~/.zshrc that loads the script from
    ~/.local/share/dfmp2, fish a file in ~/.config/fish/completions. A second time changes nothing.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(name) if name in SHELLS else None
    if kind is None:
        raise InputError(f"the shell of $SHELL is {name or 'not set'}: name one of {', '.join(SHELLS)}")
    from dfmp2.cli.main import cli

    script = (START if name == "zsh" else "") + kind(cli, {}, "dfmp2", "_DFMP2_COMPLETE").source()
    if not install:
        click.echo(script, nl=False)
        return
    from dfmp2.host.files import write_atomically

    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    place = settings / "fish/completions/dfmp2.fish" if name == "fish" else data / f"dfmp2/completion.{name}"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, script.encode(), overwrite=True)
        if name != "fish":
            start, line = Path.home() / f".{name}rc", f'source "{place}"  # completion of dfmp2\n'
            text = start.read_text() if start.exists() else ""
            if line not in text:
                with open(start, "a", encoding="utf-8") as file:
                    file.write(line if not text or text.endswith("\n") else f"\n{line}")
    except OSError as error:
        reason = f"{error.filename or place}: {error.strerror}"
        raise ResourceError(f"cannot install the completion: {reason}: print it without --install") from error
    click.echo(f"dfmp2 completion: {place}; a new {name} completes names")
