"""The daemon must not load the typed Kubernetes classes: they cost 130 MiB and more."""

from __future__ import annotations

import subprocess
import sys

KOPF_OWN = {"v1_object_meta", "v1_owner_reference", "v1_managed_fields_entry"}
"""kopf recognises objects of these three classes, and loads them for that."""

PROGRAM = """
import sys
import trimtab.controller.app
print("\\n".join(sys.modules))
"""


def test_the_controller_loads_no_typed_api_class() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "kopf" in loaded
    typed = [m for m in loaded if m.startswith("kubernetes.") and (".api." in m or ".models." in m)]
    assert {module.rpartition(".")[2] for module in typed} <= KOPF_OWN
    assert not {"torch", "kubernetes.client.api", "kubernetes.aio.client.api"} & set(loaded)
