"""``nodus completion``."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print what makes a shell complete commands, flags, kinds and names of objects.

    \b
    Examples:
      source <(nodus completion bash)               # in ~/.bashrc
      source <(nodus completion zsh)                # in ~/.zshrc
      nodus completion fish > ~/.config/fish/completions/nodus.fish
    """
    from click.shell_completion import get_completion_class

    from nodus.cli.main import root

    found = get_completion_class(shell)
    assert found is not None
    # The variable of `nodus`, whatever this program is called right now.
    print(found(root, {}, "nodus", "_NODUS_COMPLETE").source())
