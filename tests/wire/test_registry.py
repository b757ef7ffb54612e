# SPDX-License-Identifier: Apache-2.0
"""Programs are pushed to a registry and pulled from it, with credentials and verified digests."""

import base64
import io
import json
from pathlib import Path

import pytest

from pipecd.model.errors import Denied, NotFound, PipecdError, Unavailable, UserMistake
from pipecd.wire.oci import Platform, Reference, parse_reference
from pipecd.wire.registry import Login, Registry, docker_login, login_of, parse_challenge
from servers.registry import OciRegistry, digest_of

LINUX, ARM = Platform("linux", "amd64"), Platform("linux", "arm64")
LAYER, ARTIFACT = "application/vnd.test.layer", "application/vnd.test"


def reference(registry: OciRegistry, rest: str = "team/plugin:v1") -> Reference:
    return parse_reference(f"oci://{registry.host}/{rest}")


@pytest.fixture
async def pushed(registry: OciRegistry, tmp_path: Path) -> str:
    """The digest of a program for two platforms under the tag v1."""
    files = [(LINUX, tmp_path / "amd64"), (ARM, tmp_path / "arm64")]
    for platform, path in files:
        path.write_bytes(f"program for {platform}".encode())
    async with Registry.open(reference(registry)) as opened:
        return await opened.push(files, layer_type=LAYER, artifact_type=ARTIFACT)


async def pull(
    target: Reference, platform: Platform = LINUX, login: Login | None = None, layer: str = LAYER
) -> bytes:
    into = io.BytesIO()
    async with Registry.open(target, login=login) as opened:
        await opened.pull(platform, layer_type=layer, into=into)
    return into.getvalue()


async def test_each_platform_gets_its_own_program(registry: OciRegistry, pushed: str) -> None:
    assert await pull(reference(registry)) == b"program for linux/amd64"
    assert await pull(reference(registry), ARM) == b"program for linux/arm64"
    by_digest = reference(registry, f"team/plugin@{pushed}")
    assert await pull(by_digest) == b"program for linux/amd64"
    with pytest.raises(
        UserMistake, match=r"has no manifest for windows/386; it supports linux/amd"
    ):
        await pull(reference(registry), Platform("windows", "386"))


async def test_the_index_and_manifests_are_those_of_upstream(
    registry: OciRegistry, pushed: str
) -> None:
    index = json.loads(registry.manifests[("team/plugin", "v1")][1])
    assert [m["platform"] for m in index["manifests"]] == [
        {"os": "linux", "architecture": "amd64"},
        {"os": "linux", "architecture": "arm64"},
    ]
    manifest = json.loads(registry.manifests[("team/plugin", index["manifests"][0]["digest"])][1])
    assert manifest["artifactType"] == ARTIFACT
    assert [layer["mediaType"] for layer in manifest["layers"]] == [LAYER]


@pytest.mark.usefixtures("pushed")
async def test_a_blob_that_exists_is_not_uploaded_again(
    registry: OciRegistry, tmp_path: Path
) -> None:
    registry.requests.clear()
    async with Registry.open(reference(registry, "team/plugin:v2")) as opened:
        files = [(LINUX, tmp_path / "amd64")]
        await opened.push(files, layer_type=LAYER, artifact_type=ARTIFACT)
    assert not [line for line in registry.requests if line.startswith("POST")]


@pytest.mark.usefixtures("pushed")
async def test_a_token_is_fetched_from_the_realm_of_the_challenge(registry: OciRegistry) -> None:
    registry.wants_token = True
    assert await pull(reference(registry)) == b"program for linux/amd64"
    assert registry.scopes == ["repository:team/plugin:pull,push"]
    registry.login = "ann:secret"
    with pytest.raises(
        Denied, match=r"denies access to .*: .*/token issued no token; run docker login"
    ):
        await pull(reference(registry))
    assert await pull(reference(registry), login=Login("ann", "secret"))


@pytest.mark.usefixtures("pushed")
async def test_modified_content_is_rejected(registry: OciRegistry, pushed: str) -> None:
    registry.blobs = dict.fromkeys(registry.blobs, b"something else...........")
    with pytest.raises(Unavailable, match=r"does not match its digest sha256:"):
        await pull(reference(registry))
    media_type, content = registry.manifests[("team/plugin", pushed)]
    registry.manifests[("team/plugin", pushed)] = (media_type, content + b" ")
    with pytest.raises(PipecdError, match=f"does not match its digest {pushed}"):
        await pull(reference(registry, f"team/plugin@{pushed}"))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        pytest.param(b"<html>", "a manifest that is not JSON", id="a web page"),
        pytest.param(b"[]", "a manifest that is not an object", id="a list"),
        pytest.param(b'{"layers": [{"mediaType": "x"}]}', "a manifest that lacks 'digest'", id="half a layer"),
        pytest.param(b'{"layers": {}}', "has no layer of type application/vnd.test.layer", id="no layers"),
        pytest.param(b'{"layers": "x"}', "whose layers are not a list", id="layers that are a text"),
        pytest.param(b'{"manifests": []}', "has no manifest for linux/amd64; it supports no platform", id="an empty index"),
        pytest.param(b'{"layers": [{"mediaType": "application/vnd.test.layer", "digest": "md5:1", "size": 1}]}', "uses the digest md5:1", id="a weak digest"),
    ],
)  # fmt: skip
async def test_an_invalid_manifest_is_reported(
    registry: OciRegistry, content: bytes, error: str
) -> None:
    registry.manifests[("team/plugin", "v1")] = ("application/json", content)
    with pytest.raises(PipecdError, match=error):
        await pull(reference(registry))


async def test_a_missing_reference_and_an_outage_are_reported(registry: OciRegistry) -> None:
    with pytest.raises(NotFound, match=r"the registry has no .*team/plugin:v1; check its name"):
        await pull(reference(registry))
    registry.outages = 1
    with pytest.raises(Unavailable, match=r"answered 503"):
        await pull(reference(registry))
    with pytest.raises(Unavailable, match=r"the registry 127.0.0.1:1 is unavailable"):
        await pull(parse_reference("oci://127.0.0.1:1/team/plugin"))


async def test_over_tls_the_certificate_counts(
    tls_registry: OciRegistry,
    certificate: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = (
        b'{"layers": [{"mediaType": "application/vnd.test.layer", "digest": "%s", "size": 2}]}'
    )
    digest = digest_of(b"ok")
    tls_registry.blobs[digest] = b"ok"
    manifest = ("application/json", content % digest.encode())
    tls_registry.manifests[("team/plugin", "v1")] = manifest
    with pytest.raises(Unavailable):
        await pull(reference(tls_registry))
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    assert await pull(reference(tls_registry)) == b"ok"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        pytest.param("oci://registry.example.com/a/b", Reference("registry.example.com", "a/b", "latest"), id="without a tag it is the latest"),
        pytest.param("oci://h:5000/a-b.c/d:v1.0_2", Reference("h:5000", "a-b.c/d", "v1.0_2"), id="a port and a tag"),
        pytest.param(f"oci://h/a@sha256:{'0' * 64}", Reference("h", "a", "latest", f"sha256:{'0' * 64}"), id="a digest"),
        pytest.param(f"oci://h/a:t@sha256:{'0' * 64}", Reference("h", "a", "t", f"sha256:{'0' * 64}"), id="both"),
        *(pytest.param(url, None, id=url) for url in ("oci://", "oci://h", "oci://h/", "oci://h/A", "oci://h/a:", "oci://h/a:!", "oci://h/a@", "oci://h/a@sha256:1", "oci://h/a//b", "oci:///a")),
    ],
)  # fmt: skip
def test_references_are_parsed(url: str, expected: Reference | None) -> None:
    if expected is None:
        with pytest.raises(UserMistake, match=r"is not a valid OCI reference"):
            parse_reference(url)
    else:
        assert parse_reference(url) == expected


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1:5000", True), ("localhost", True), ("[::1]:1", True), ("localhost.example.com", False), ("10.0.0.1", False)],
)  # fmt: skip
def test_only_loopback_may_do_without_tls(host: str, is_loopback: bool) -> None:
    assert Reference(host, "a").is_on_loopback is is_loopback


def test_credentials_come_from_the_docker_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = base64.b64encode(b"ann:se:cret").decode()
    content = json.dumps(
        {
            "auths": {
                "https://registry.example.com/v1/": {"auth": pair},
                "h:5000": {"username": "bob", "password": "p"},
            }
        }
    ).encode()
    assert login_of(content, "registry.example.com") == Login("ann", "se:cret")
    assert login_of(content, "h:5000") == Login("bob", "p")
    assert login_of(content, "elsewhere") == Login()
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert docker_login("h:5000") == Login()
    (tmp_path / "config.json").write_bytes(content)
    assert docker_login("h:5000") == Login("bob", "p")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserMistake, match=r"cannot read registry credentials from .*config\.json"):
        docker_login("h:5000")


def test_challenges_are_parsed() -> None:
    read = parse_challenge('Bearer realm="https://a/t",service="s",scope="repository:a:pull"')
    assert read.scheme == "bearer"
    assert read.parameters == {
        "realm": "https://a/t",
        "service": "s",
        "scope": "repository:a:pull",
    }
