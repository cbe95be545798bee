"""`specsim schema`: the JSON schema of scenario files."""

from __future__ import annotations

import sys


def schema() -> int:
    """Print the JSON schema of scenario files, for editors.

    Begin a scenario with `# yaml-language-server: $schema=scenario.schema.json` to use it.
    """
    from specsim.scenario.load import schema_json

    sys.stdout.write(schema_json())
    return 0
