"""What hack/release makes of a built image can be loaded and run, and says of itself what is true."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hack.supply import attest, release, sign
from hack.supply.oci import Layout
from tests.image.conftest import LOCKED, Docker, inspected

pytestmark = [pytest.mark.image, pytest.mark.timeout(1800)]


@pytest.fixture
def agent(images: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """The agent's image as it would be published. It was built before: Docker has all of its layers."""
    monkeypatch.setattr(release, "DIST", tmp_path)
    digest = release.build("agent")
    layout = Layout(tmp_path / "agent")
    assert layout.image()["digest"] == digest
    return layout


def test_a_released_image_is_the_built_one(docker: Docker, images: dict[str, str], agent: Layout) -> None:
    built = inspected(docker, images["agent"])["Config"]
    packed = subprocess.run(["tar", "-C", str(agent.folder), "-c", "."], capture_output=True, check=True).stdout
    subprocess.run(["docker", "load"], input=packed, capture_output=True, check=True)
    loaded = inspected(docker, images["agent"])
    assert loaded["Id"] == agent.document(agent.image())["config"]["digest"]
    for key in ("Entrypoint", "Env", "Labels", "User"):
        assert loaded["Config"][key] == built[key]
    said = docker(
        "run", "--rm", *LOCKED, "--entrypoint", "python", images["agent"], "-c", "import trimtab.agent; print(1)"
    )
    assert said.stdout == "1\n"


def test_its_statements_are_signed_and_list_what_is_in_it(agent: Layout) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    sign.sign(agent, key, "example.org/trimtab-agent")
    bill, built = sign.verify(agent, key.public_key(), "example.org/trimtab-agent")
    assert {"aiohttp", "trimtab"} <= {each["name"] for each in bill["predicate"]["components"]} | {
        bill["predicate"]["metadata"]["component"]["name"]
    }
    assert built["predicateType"] == attest.PROVENANCE
    materials = built["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert [each["uri"] for each in materials if not each.get("digest")] == [], "everything is named by digest"


def test_packing_again_gives_the_same_digest(agent: Layout) -> None:
    assert release.build("agent") == agent.image()["digest"]
