"""The bill of materials of an image's Python packages: `sbom.py NAME DIRECTORY`, run with the tools' Python.

CycloneDX, by its own tool. What the image has of the distribution stands in /var/lib/dpkg/status.d (see root.py).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ENVIRONMENT = "/opt/venv/bin/python"


def main() -> None:
    """Write DIRECTORY/trimtab-NAME.cdx.json; the same packages give the same file."""
    name, directory = sys.argv[1], Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"trimtab-{name}.cdx.json"
    command = [str(Path(sys.executable).with_name("cyclonedx-py")), "environment", "--output-reproducible"]
    command += ["--output-format", "JSON", "--pyproject", "pyproject.toml", "--output-file", str(target), ENVIRONMENT]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
