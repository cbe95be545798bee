"""`specsim schema`: the JSON schema of scenario files."""

from __future__ import annotations

import sys

from specsim.cli.common import Quiet


def schema(*, quiet: Quiet = False) -> int:
    """Print the JSON schema of scenario files, for editors.

    Begin a scenario with `# yaml-language-server: $schema=scenario.schema.json` to use it.
    """
    del quiet  # it says nothing on stderr
    from specsim.scenario.load import schema_json

    sys.stdout.write(schema_json())
    return 0
