"""`python -m trimtab.agent`: the agent without the command line, which its image has no use for.

Settings come from $TRIMTAB_CONFIG and TRIMTAB_* variables. With CONFIG (JSON) as argument, as `trimtab.agent.start`
puts it there, it is the agent itself.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from trimtab.agent.config import AgentConfig
from trimtab.errors import TrimtabError
from trimtab.printable import say


def main() -> int:
    """Run until stopped; 1 when the agent cannot run at all."""
    try:
        if len(sys.argv) == 1:
            _start()
        from trimtab.agent.app import run_agent  # what follows is all that stays in memory

        asyncio.run(run_agent(msgspec.json.decode(sys.argv[1], type=AgentConfig)))
    except TrimtabError as error:
        say(f"trimtab: {error}", error=True)
        return 1
    return 0


def _start() -> None:
    from trimtab.agent.start import become, config_of, node_name
    from trimtab.settings import load

    settings = load(process="agent")
    become(config_of(settings, node_name(settings)))


if __name__ == "__main__":
    sys.exit(main())
