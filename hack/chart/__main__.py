"""`python -m hack.chart`: build helm and kubeconform unless they are there, and print their directory.

`python -m hack.chart render` writes manifests/install.yaml: the chart with its defaults, and a Namespace.
"""

from __future__ import annotations

import sys

from hack.chart.render import INSTALL, install
from hack.chart.tools import build

from trimtab.errors import TrimtabError

if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["render"]:
            INSTALL.write_text(install())
        elif sys.argv[1:]:
            sys.exit(__doc__)
        else:
            print(build())
    except TrimtabError as error:
        sys.exit(f"error: {error}")
