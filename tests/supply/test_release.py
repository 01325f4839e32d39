"""Images: the same from build to build, attested and signed as cosign does it, refused when anything was changed."""

from __future__ import annotations

import base64
import gzip
import io
import json
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hack.supply import attest, normal, release, sign
from hack.supply.oci import ATTESTATIONS, IMAGE, KIND, SIGNATURES, Layout, LayoutError, digest, encoded
from tests.docs.pages import ROOT, blocks

BILL = {"bomFormat": "CycloneDX", "components": []}
NAME = "example.org/trimtab-agent"
EPOCH = 1_700_000_000
KEY = ec.generate_private_key(ec.SECP256R1())


def member(name: str, data: bytes = b"", **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


def packed(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(mode="w", fileobj=file) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return file.getvalue()


def contents(when: int = 1) -> list[tuple[tarfile.TarInfo, bytes]]:
    """What a small image has: a directory, a program with two names, a link, and its bill of materials."""
    return [
        member("bin/", type=tarfile.DIRTYPE, mode=0o755, mtime=when, uname="root"),
        member("bin/tool", b"run me", mode=0o755, mtime=when, uid=7),
        member("bin/again", type=tarfile.LNKTYPE, linkname="bin/tool", mode=0o755, mtime=when, uid=7),
        member("bin/short", type=tarfile.SYMTYPE, linkname="tool", mtime=when),
        member("usr/share/sbom/trimtab-agent.cdx.json", json.dumps(BILL).encode(), mtime=when),
    ]


def saved(folder: Path, layer: bytes, when: str = "2026-01-01T00:00:00Z", user: str = "65532") -> Path:
    """A folder as `docker save` packs it."""
    folder.mkdir()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": when,
        "container": f"made {when}",
        "config": {"Hostname": when, "User": user, "Env": ["A=b"], "Entrypoint": ["tool"], "Labels": None},
        "history": [{"created": when}],
        "rootfs": {"type": "layers", "diff_ids": ["sha256:0"]},
    }
    (folder / "config.json").write_bytes(encoded(config))
    (folder / "layer.tar").write_bytes(layer)
    (folder / "manifest.json").write_bytes(encoded([{"Config": "config.json", "Layers": ["layer.tar"]}]))
    return folder


def imaged(folder: Path, layer: bytes, **more: str) -> Layout:
    layout = Layout(folder / "image")
    layout.begin()
    normal.image(saved(folder / "saved", layer, **more), layout, "0.1.0", EPOCH)
    return layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """An image with its statements."""
    made = imaged(tmp_path, packed(contents()))
    described = made.image()
    attest.beside(made, attest.statement("trimtab-agent", described, attest.BILL, attest.bill_of(made)))
    built = attest.provenance("agent", f"python:3.11@sha256:{'a' * 64}", {"VERSION": "0.1.0"}, EPOCH)
    attest.beside(made, attest.statement("trimtab-agent", described, attest.PROVENANCE, built))
    return made


def test_two_builds_of_the_same_have_one_digest(tmp_path: Path) -> None:
    """Another hour, another order, another name first, packed by somebody else, compressed or not."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    one = imaged(first, packed(contents()))
    later = [each for each in reversed(contents(2)) if each[0].name not in ("bin/tool", "bin/again")]
    later += [
        member("./bin/again", b"run me", mode=0o755, mtime=5, uid=7),
        member("./bin/tool", type=tarfile.LNKTYPE, linkname="bin/again", mode=0o755, mtime=5, uid=7),
    ]
    other = imaged(second, gzip.compress(packed(later)), when="2026-02-02T02:02:02Z")
    assert one.image() == other.image()
    assert sorted(path.name for path in one.blobs.iterdir()) == sorted(path.name for path in other.blobs.iterdir())


@pytest.mark.parametrize(
    "change",
    [{"mode": 0o4755}, {"uid": 0}, {"name": "bin/tool2"}, {"pax_headers": {"SCHILY.xattr.security.capability": "x"}}],
)
def test_what_matters_changes_the_digest(tmp_path: Path, change: dict[str, Any]) -> None:
    for name in ("as-it-was", "changed"):
        (tmp_path / name).mkdir()
    before = imaged(tmp_path / "as-it-was", packed([member("bin/tool", b"x", mode=0o755, uid=7)]))
    changed = {"name": "bin/tool", "mode": 0o755, "uid": 7} | change
    after = imaged(tmp_path / "changed", packed([member(**changed, data=b"x")]))
    assert before.image()["digest"] != after.image()["digest"]


def test_an_image_is_what_it_was(layout: Layout) -> None:
    """Its configuration, and every file of it with its owner and its rights."""
    manifest = layout.document(layout.image())
    config = layout.document(manifest["config"])
    assert config["config"] == {"User": "65532", "Env": ["A=b"], "Entrypoint": ["tool"]}
    assert config["created"] == "2023-11-14T22:13:20Z"
    [blob] = manifest["layers"]
    unpacked = gzip.decompress(layout.get(blob))
    assert config["rootfs"]["diff_ids"] == [digest(unpacked)]
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
        found = {each.name: each for each in tar}
        assert list(found) == sorted(found)
        assert {each.mtime for each in found.values()} == {EPOCH}
        assert {(found[name].mode, found[name].uid) for name in ("bin/tool", "bin/again")} == {(0o755, 7)}
        for name in ("bin/tool", "bin/again", "bin/short"):
            file = tar.extractfile(name)
            assert file is not None
            assert file.read() == b"run me"
    normal.for_docker(layout, "trimtab-agent:0.1.0")
    [entry] = json.loads((layout.folder / "manifest.json").read_text())
    assert [digest((layout.folder / path).read_bytes()) for path in entry["Layers"]] == [blob["digest"]]


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    with pytest.raises(FileExistsError):
        Layout(tmp_path).begin()
    assert (tmp_path / "thesis.txt").exists()


def test_statements_are_about_the_image_and_say_what_it_was_built_from(layout: Layout) -> None:
    bill, built = attest.statements(layout)
    assert bill["predicate"] == BILL
    assert bill["subject"] == [{"name": "trimtab-agent", "digest": {"sha256": layout.image()["digest"][7:]}}]
    materials = {each["uri"]: each["digest"] for each in built["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert materials["docker:python:3.11"] == {"sha256": "a" * 64}
    assert set(materials) > {"git+checkout", "file:hack/constraints.txt", "file:Dockerfile"}
    referring = [each for each in layout.index() if each["annotations"][KIND] == "in-toto"]
    assert [layout.document(each)["subject"]["digest"] for each in referring] == [layout.image()["digest"]] * 2


def test_what_was_signed_is_verified_with_the_public_key(layout: Layout) -> None:
    sign.sign(layout, KEY, NAME)
    said = sign.verify(layout, KEY.public_key(), NAME)
    assert [each["predicateType"] for each in said] == [attest.BILL, attest.PROVENANCE]
    before = (layout.folder / "index.json").read_bytes()
    sign.sign(layout, KEY, NAME)
    assert (layout.folder / "index.json").read_bytes() == before, "signing again changes nothing"
    hexadecimal = layout.image()["digest"][7:]
    names = {each["annotations"][KIND]: list(each["annotations"].values())[-1] for each in layout.index()}
    assert names[SIGNATURES] == f"sha256-{hexadecimal}.sig"
    assert names[ATTESTATIONS] == f"sha256-{hexadecimal}.att"


def test_another_key_another_name_and_no_signature_are_refused(layout: Layout) -> None:
    with pytest.raises(sign.Refused, match="not signed"):
        sign.verify(layout, KEY.public_key())
    sign.sign(layout, KEY, NAME)
    stranger = ec.generate_private_key(ec.SECP256R1()).public_key()
    with pytest.raises(sign.Refused, match="not of this key"):
        sign.verify(layout, stranger)
    with pytest.raises(sign.Refused, match=r"signed as example\.org/trimtab-agent, not as x"):
        sign.verify(layout, KEY.public_key(), "x")


def test_a_signature_of_another_image_is_refused(tmp_path: Path, layout: Layout) -> None:
    """The whole of it, taken from an image that the key did sign."""
    (tmp_path / "evil").mkdir()
    evil = imaged(tmp_path / "evil", packed([member("bin/tool", b"evil")]))
    sign.sign(layout, KEY, NAME)
    for blob in layout.blobs.iterdir():
        evil.path(f"sha256:{blob.name}").write_bytes(blob.read_bytes())
    stolen = [each for each in layout.index() if each["annotations"][KIND] != IMAGE]
    evil.write_index([evil.image(), *stolen])
    with pytest.raises(sign.Refused, match="not about this image"):
        sign.verify(evil, KEY.public_key(), NAME)
    with pytest.raises(LayoutError, match="a statement is about"):
        sign.sign(evil, KEY, NAME)
    evil.write_index([evil.image()])
    sign.sign(evil, KEY, NAME)
    evil.write_index([*evil.index(), *(each for each in stolen if each["annotations"][KIND] == ATTESTATIONS)])
    with pytest.raises(sign.Refused, match="an attestation is about another image"):
        sign.verify(evil, KEY.public_key(), NAME)


def test_a_changed_blob_is_refused_whichever_it_is(layout: Layout) -> None:
    sign.sign(layout, KEY, NAME)
    manifest = layout.document(layout.image())
    signatures, attested = layout.find(SIGNATURES), layout.find(ATTESTATIONS)
    assert signatures
    assert attested
    blobs = [layout.image(), manifest["config"], *manifest["layers"], signatures, attested]
    blobs += [*layout.document(signatures)["layers"], *layout.document(attested)["layers"]]
    for blob in blobs:
        path = layout.path(blob["digest"])
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(LayoutError, match="another content"):
            sign.verify(layout, KEY.public_key(), NAME)
        path.write_bytes(whole)
    assert sign.verify(layout, KEY.public_key(), NAME)


def test_an_attestation_that_somebody_else_wrote_is_refused(layout: Layout) -> None:
    sign.sign(layout, KEY, NAME)
    other = ec.generate_private_key(ec.SECP256R1())
    mine = layout.find(SIGNATURES)
    sign.sign(layout, other, NAME)
    assert mine
    layout.write_index([each for each in layout.index() if each["annotations"][KIND] != SIGNATURES] + [mine])
    with pytest.raises(sign.Refused, match="an attestation is not signed with this key"):
        sign.verify(layout, KEY.public_key(), NAME)


@pytest.mark.parametrize("name", ["../../etc/passwd", "sha256:../x", "sha256:" + "A" * 64, "md5:" + "0" * 64, ""])
def test_a_digest_is_a_digest_and_no_path(layout: Layout, name: str) -> None:
    with pytest.raises(LayoutError, match="no digest"):
        layout.get({"digest": name, "size": 1})


def written(path: Path, private: Any, password: bytes | None = None) -> Path:
    protection = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    pkcs8 = serialization.PrivateFormat.PKCS8
    path.write_bytes(private.private_bytes(serialization.Encoding.PEM, pkcs8, protection))
    return path


def test_keys_are_files_of_the_usual_form_and_of_one_kind(tmp_path: Path) -> None:
    path = written(tmp_path / "key.pem", KEY, b"secret")
    assert sign.private_key(path, "secret").private_numbers() == KEY.private_numbers()
    others = {
        "locked": (path, "wrong"),
        "missing": (tmp_path / "none.pem", None),
        "rsa": (written(tmp_path / "rsa.pem", rsa.generate_private_key(65537, 2048)), None),
        "curve": (written(tmp_path / "p384.pem", ec.generate_private_key(ec.SECP384R1())), None),
    }
    for file, password in others.values():
        with pytest.raises(sign.KeyProblem):
            sign.private_key(file, password)
    with pytest.raises(sign.KeyProblem):
        sign.public_key(path)


def test_the_command_signs_and_verifies(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    private = written(tmp_path / "key.pem", KEY, b"secret")
    public = tmp_path / "key.pub"
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(KEY.public_key().public_bytes(serialization.Encoding.PEM, info))
    monkeypatch.setenv("COSIGN_PASSWORD", "secret")

    def run(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["hack/release", *words, str(layout.folder)])
        return release.main()

    assert run("verify", "--key", str(public)) == 1
    assert "error: the image is not signed" in capsys.readouterr().err
    assert run("sign", "--key", str(private), "--name", NAME) == 0
    assert run("verify", "--key", str(public), "--name", NAME) == 0
    said = capsys.readouterr().out
    assert layout.image()["digest"] in said
    assert f"attested: {attest.PROVENANCE}" in said
    assert run("verify", "--key", str(private)) == 1


def test_an_envelope_is_one_of_dsse(layout: Layout) -> None:
    """Its signature is over its type, too: "DSSEv1", the lengths and both."""
    sign.sign(layout, KEY, NAME)
    attested = layout.find(ATTESTATIONS)
    assert attested
    sealed = layout.document(layout.document(attested)["layers"][0])
    body = base64.b64decode(sealed["payload"])
    assert sign._authenticated("a/b", b"xyz") == b"DSSEv1 3 a/b 3 xyz"
    signature = sealed["signatures"][0]["sig"]
    assert sign._valid(KEY.public_key(), signature, sign._authenticated("application/vnd.in-toto+json", body))
    assert not sign._valid(KEY.public_key(), signature, body)


PAGE = "# Notes\n\n## 0.2.0 (not released yet)\n\nQueues.\n\n### To do\n\nNo.\n\n## 0.1.0\n\n## 0.0.1\n\nFirst.\n"


def test_notes_of_a_version_are_what_stands_below_it() -> None:
    assert release.notes(PAGE, "0.2.0") == "Queues.\n\n### To do\n\nNo."
    assert release.notes(PAGE, "0.0.1") == "First."


@pytest.mark.parametrize("version", ["0.1.0", "0.2", "0.3.0"])
def test_a_version_without_notes_is_not_built(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty section is none. Nothing is built, and nothing is made in dist."""
    page = tmp_path / "release-notes.md"
    page.write_text(PAGE)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "NOTES", page)
    monkeypatch.setattr("sys.argv", ["hack/release", "build"])
    monkeypatch.setattr(release, "version", lambda: version)
    monkeypatch.setattr(release, "DIST", tmp_path / "dist")
    assert release.main() == 1
    assert f"`## {version}`" in capsys.readouterr().err
    assert not (tmp_path / "dist").exists()


def test_the_version_of_this_checkout_has_notes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["hack/release", "notes"])
    assert release.main() == 0
    assert len(capsys.readouterr().out.splitlines()) > 10


def test_the_way_of_the_manual_signs_and_verifies(layout: Layout, tmp_path: Path) -> None:
    """As hack/README.md has it, in a checkout where an image has been built and nothing is to be set up."""
    for name in ("hack", "dist"):
        (tmp_path / name).mkdir()
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    for name in ("release", "supply", "requirements.py", "constraints.txt"):
        (tmp_path / "hack" / name).symlink_to(ROOT / "hack" / name)
    (tmp_path / "hack" / "setup").symlink_to("/bin/true")
    layout.folder.rename(tmp_path / "dist" / "agent")
    script = "\n".join(["set -euo pipefail", *blocks("sh release")])
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trimtab.key").exists()
