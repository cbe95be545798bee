"""`specsim completion`: what a shell needs to complete commands and flags."""

from __future__ import annotations

import sys
from typing import Literal

from specsim.cli.common import Quiet


def completion(shell: Literal["bash", "zsh", "fish"], /, *, quiet: Quiet = False) -> int:
    """Print the completion script of a shell.

    bash: `specsim completion bash > ~/.local/share/bash-completion/completions/specsim`
    zsh: `specsim completion zsh > ~/.zfunc/_specsim`, with that folder in `fpath`
    fish: `specsim completion fish > ~/.config/fish/completions/specsim.fish`

    Parameters
    ----------
    shell
        Whose.
    """
    from specsim.cli import make_app

    del quiet  # it says nothing on stderr
    script = make_app().generate_completion(prog_name="specsim", shell=shell)
    sys.stdout.write(script.rstrip("\n") + "\n")
    return 0
