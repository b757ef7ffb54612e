# SPDX-License-Identifier: Apache-2.0
"""A working copy has its secrets and attachments, and nothing from outside of its repository."""

import stat
import traceback
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pipecd.config.application import config_path
from pipecd.config.catalog import load_catalog
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.model.errors import NotFound, PipecdError, Unavailable, UserMistake
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.source.render import TemplateRenderer
from pipecd.piped.source.sources import Decrypt, Sources
from pipecd.program.workers import WorkerPool
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.secrets import hybrid
from pipecd.secrets.binding import Binding
from pipecd.secrets.decrypter import Decrypter
from servers.origin import Origin
from servers.samples import CART


@pytest.fixture(scope="module")
def keys(spec_dir: Path) -> tuple[bytes, bytes]:
    vectors = spec_dir / "vectors"
    private = (vectors / "secret_private.pem").read_bytes()
    return private, (vectors / "secret_public.pem").read_bytes()


@asynccontextmanager
async def sources_of(
    origin: Origin, tmp_path: Path, *, decrypt: Decrypt | None = None
) -> AsyncGenerator[Sources]:
    repository = Repository("site", origin.remote, "main")
    async with (
        open_mirrors(
            [repository], directory=tmp_path / "m", credentials=GitCredentials()
        ) as mirrors,
        WorkerPool() as workers,
    ):
        yield Sources(
            mirrors,
            ApplicationConfigs(load_catalog()),
            project="shop",
            renderer=TemplateRenderer(workers),
            decrypt=decrypt,
        )


def git_path(path: str = "cart", config_filename: str = "app.pipecd.yaml") -> ApplicationGitPath:
    repo = ApplicationGitRepository(id="site", remote="x", branch="main")
    return ApplicationGitPath(repo=repo, path=path, config_filename=config_filename)


async def test_a_source_has_the_paths_that_plugins_receive(origin: Origin, tmp_path: Path) -> None:
    commit = origin.commit({"cart/app.pipecd.yaml": CART, "cart/x": "1", ".pipe/a.yaml": ""})
    async with sources_of(origin, tmp_path) as sources:
        source = await sources.at(git_path(), commit, into=tmp_path / "work" / "target")
    assert source.config.spec.name == "cart"
    assert (source.application_directory / "x").read_text() == "1"
    assert stat.S_IMODE(source.directory.stat().st_mode) == 0o700
    proto = source.to_proto()
    assert proto.commit_hash == commit
    assert proto.application_directory == str(tmp_path / "work" / "target" / "cart")
    assert proto.shared_config_directory == str(tmp_path / "work" / "target" / ".pipe")
    assert proto.application_config == CART.encode()
    assert proto.application_config_filename == "app.pipecd.yaml"


async def test_an_older_commit_with_another_file_name(origin: Origin, tmp_path: Path) -> None:
    old = origin.commit({"cart/old.pipecd.yaml": CART})
    new = origin.commit({"cart/old.pipecd.yaml": None, "cart/app.pipecd.yaml": CART})
    async with sources_of(origin, tmp_path) as sources:
        source = await sources.at(
            git_path(), old, config_filename="old.pipecd.yaml", into=tmp_path / "w"
        )
        assert source.config_filename == "old.pipecd.yaml"
        again = await sources.at(git_path(), new, into=tmp_path / "w")
    assert sorted(p.name for p in again.application_directory.iterdir()) == ["app.pipecd.yaml"]


async def test_secrets_and_attachments_are_rendered(
    origin: Origin, tmp_path: Path, keys: tuple[bytes, bytes]
) -> None:
    private, public = keys
    secret = hybrid.encrypt(public, "pa$$")
    spec = f"""\
  encryption:
    encryptedSecrets:
      password: {secret}
      with-dash: {secret}
    decryptionTargets: [secret.yaml, ../shared/note.txt]
  attachment:
    sources:
      note: ../shared/note.txt
    targets: [config.yaml]
"""
    commit = origin.commit(
        {
            "cart/app.pipecd.yaml": CART + spec,
            "cart/secret.yaml": 'a: {{ .encryptedSecrets.password | b64enc }}\nb: {{ index .encryptedSecrets "with-dash" }}\n',
            "cart/config.yaml": "c: {{ .attachment.note }} {{ .encryptedSecrets.password }}",
            "shared/note.txt": "[{{ .encryptedSecrets.password }}]",
            "cart/untouched.yaml": "{{ .encryptedSecrets.password }}",
        }
    )
    (origin.path / "cart/secret.yaml").chmod(0o755)
    commit = origin.commit()
    async with sources_of(
        origin, tmp_path, decrypt=lambda text, _: hybrid.decrypt(private, text)
    ) as sources:
        source = await sources.at(git_path(), commit, into=tmp_path / "w")
    cart = source.application_directory
    assert (cart / "secret.yaml").read_text() == "a: cGEkJA==\nb: pa$$\n"
    assert (cart / "config.yaml").read_text() == "c: [pa$$] pa$$"
    assert (cart / "untouched.yaml").read_text() == "{{ .encryptedSecrets.password }}"
    assert (cart / "secret.yaml").stat().st_mode & 0o100
    assert set(source.secrets) == {"pa$$"}
    assert "pa$$" not in repr(source)


async def test_without_secret_management_nothing_is_decrypted(
    origin: Origin, tmp_path: Path
) -> None:
    spec = "  encryption:\n    encryptedSecrets: {a: b}\n    decryptionTargets: [x]\n"
    commit = origin.commit(
        {"cart/app.pipecd.yaml": CART + spec, "cart/x": "{{ .encryptedSecrets.a }}"}
    )
    with capture_logs() as logs:
        async with sources_of(origin, tmp_path) as sources:
            await sources.at(git_path(), commit, into=tmp_path / "v")
            source = await sources.at(git_path(), commit, into=tmp_path / "w")
    assert (source.application_directory / "x").read_text() == "{{ .encryptedSecrets.a }}"
    assert len([each for each in logs if "no secretManagement" in each["event"]]) == 1


SECRETS = """\
  encryption:
    encryptedSecrets: {{password: {text}, pin: {pin}}}
    decryptionTargets: [secret]
"""


@pytest.mark.parametrize(
    ("template", "error"),
    [
        pytest.param(
            "{{ fail .encryptedSecrets.password }}",
            "failed to render target file secret (template: secret:1: error calling fail: ******)",
            id="a function that repeats its argument in the error",
        ),
        pytest.param(
            "{{ .encryptedSecrets.other }}",
            "failed to render target file secret (template: secret:1: map has no entry",
            id="a name that is not there",
        ),
        pytest.param(
            None, "failed to parse target file secret (it does not exist", id="no such file"
        ),
    ],
)
async def test_an_error_with_secrets_names_the_file_and_never_the_value(
    origin: Origin, tmp_path: Path, template: str | None, error: str
) -> None:
    spec = SECRETS.format(text="a", pin="b")
    files = {"cart/app.pipecd.yaml": CART + spec, "cart/secret": template or ""}
    origin.commit(files)
    commit = origin.commit({"cart/secret": template})
    async with sources_of(origin, tmp_path, decrypt=lambda text, _: f"hunter22-{text}") as sources:
        with pytest.raises(UserMistake) as caught:
            await sources.at(git_path(), commit, into=tmp_path / "w")
    assert error in str(caught.value)
    assert "hunter22" not in "".join(traceback.format_exception(caught.value))
    assert not (tmp_path / "w").exists()


async def test_a_secret_that_cannot_be_decrypted_is_named(
    origin: Origin, tmp_path: Path, keys: tuple[bytes, bytes]
) -> None:
    spec = SECRETS.format(text=hybrid.encrypt(keys[1], "hunter22"), pin="bm9uc2Vuc2U=")
    commit = origin.commit({"cart/app.pipecd.yaml": CART + spec, "cart/secret": ""})
    decrypter = Decrypter(keys[1], [hybrid.PrivateKey(keys[0])])
    async with sources_of(origin, tmp_path, decrypt=decrypter.decrypt) as sources:
        with pytest.raises(UserMistake, match=r"failed to decrypt pin secret \(.*too short\)"):
            await sources.at(git_path(), commit, into=tmp_path / "w")


async def test_an_unavailable_key_service_is_not_a_user_mistake(
    origin: Origin, tmp_path: Path
) -> None:
    spec = SECRETS.format(text="a", pin="b")
    commit = origin.commit({"cart/app.pipecd.yaml": CART + spec, "cart/secret": ""})

    def unavailable(_text: str, _binding: Binding) -> str:
        raise Unavailable("the key service is unavailable")

    async with sources_of(origin, tmp_path, decrypt=unavailable) as sources:
        with pytest.raises(Unavailable):
            await sources.at(git_path(), commit, into=tmp_path / "w")


async def test_without_secrets_the_targets_are_left_alone(origin: Origin, tmp_path: Path) -> None:
    spec = "  encryption: {encryptedSecrets: {}, decryptionTargets: [x, none]}\n"
    spec += "  attachment: {sources: {}, targets: [x, none]}\n"
    commit = origin.commit({"cart/app.pipecd.yaml": CART + spec, "cart/x": "{{ nonsense }}"})
    async with sources_of(origin, tmp_path, decrypt=lambda text, _: text) as sources:
        source = await sources.at(git_path(), commit, into=tmp_path / "w")
    assert (source.application_directory / "x").read_text() == "{{ nonsense }}"


async def test_a_target_of_both_sections_is_rendered_twice(origin: Origin, tmp_path: Path) -> None:
    spec = SECRETS.format(text="a", pin="b") + ATTACH.replace("NOTE", "note")
    text = "{{ .encryptedSecrets.password }} {{ `{{ .attachment.note }}` }}"
    files = {
        "cart/app.pipecd.yaml": CART + spec.replace("TARGET", "secret"),
        "cart/secret": text,
        "cart/note": "note",
    }
    commit = origin.commit(files)
    async with sources_of(origin, tmp_path, decrypt=lambda text, _: text * 5) as sources:
        source = await sources.at(git_path(), commit, into=tmp_path / "w")
    assert (source.application_directory / "secret").read_text() == "aaaaa note"


async def test_a_secret_too_short_to_be_masked_is_logged_once(
    origin: Origin, tmp_path: Path
) -> None:
    spec = SECRETS.format(text="long", pin="abc")
    commit = origin.commit({"cart/app.pipecd.yaml": CART + spec, "cart/secret": ""})
    with capture_logs() as logs:
        async with sources_of(origin, tmp_path, decrypt=lambda text, _: text) as sources:
            for _ in range(2):
                await sources.at(git_path(), commit, into=tmp_path / "w")
    (warned,) = [each for each in logs if "too short" in each["event"]]
    assert (warned["secret"], warned["application_name"]) == ("pin", "cart")
    assert warned["config_file"] == "cart/app.pipecd.yaml"
    assert "abc" not in str(warned)


ATTACH = "  attachment:\n    sources: {note: NOTE}\n    targets: [TARGET]\n"


@pytest.mark.parametrize(
    ("note", "target", "message"),
    [
        pytest.param(
            "none",
            "t",
            "failed to read data source to attach from file none",
            id="a missing source",
        ),
        pytest.param(
            "../../../outside", "t", "it leads outside of the repository", id="a source outside"
        ),
        pytest.param("link", "t", "it leads outside of the repository", id="a link to the outside"),
        pytest.param("note", "none", "failed to parse target file none", id="a missing target"),
        pytest.param("note", "link", "failed to parse target file link", id="a target outside"),
        pytest.param(
            "note",
            "bad",
            "failed to render target file bad (template: bad:1: map has no entry",
            id="a missing key",
        ),
        pytest.param("note", "worse", "failed to render target file worse", id="a broken template"),
    ],
)
async def test_template_errors(
    origin: Origin, tmp_path: Path, note: str, target: str, message: str
) -> None:
    (tmp_path / "outside").write_text("secret of piped")
    files = {
        "cart/app.pipecd.yaml": CART + ATTACH.replace("NOTE", note).replace("TARGET", target),
        "cart/note": "note",
        "cart/t": "{{ .attachment.note }}",
        "cart/bad": "{{ .attachment.other }}",
        "cart/worse": "{{ if }}",
    }
    origin.commit(files)
    (origin.path / "cart" / "link").symlink_to(tmp_path / "outside")
    commit = origin.commit()
    async with sources_of(origin, tmp_path) as sources:
        with pytest.raises(UserMistake) as caught:
            await sources.at(git_path(), commit, into=tmp_path / "w")
    assert message in str(caught.value)
    assert "secret of piped" not in str(caught.value)
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("at", "kind", "message"),
    [
        pytest.param(
            git_path("nowhere"),
            NotFound,
            "application config file nowhere/app.pipecd.yaml was not found",
            id="no such directory",
        ),
        pytest.param(
            git_path(config_filename="link.yaml"),
            UserMistake,
            "is a symbolic link to a file outside of the repository",
            id="a link to the outside",
        ),
        pytest.param(
            git_path("../.."), UserMistake, "is not a path inside", id="a path to the outside"
        ),
        pytest.param(
            git_path(config_filename="bad.yaml"),
            UserMistake,
            "cart/bad.yaml",
            id="a broken configuration names its file",
        ),
        pytest.param(
            git_path(config_filename=""),
            NotFound,
            "cart/.pipe.yaml was not found",
            id="no file name means the old one",
        ),
    ],
)
async def test_configuration_errors(
    origin: Origin, tmp_path: Path, at: ApplicationGitPath, kind: type[PipecdError], message: str
) -> None:
    (tmp_path / "app.pipecd.yaml").write_text(CART)
    origin.commit({"cart/app.pipecd.yaml": CART, "cart/bad.yaml": "kind: [", "x": ""})
    (origin.path / "cart" / "link.yaml").symlink_to(tmp_path / "app.pipecd.yaml")
    commit = origin.commit()
    async with sources_of(origin, tmp_path) as sources:
        with pytest.raises(kind) as caught:
            await sources.at(at, commit, into=tmp_path / "w")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [("a/b", "c.yaml", "a/b/c.yaml"), ("./", "c.yaml", "c.yaml"), ("./a/", "", "a/.pipe.yaml")],
)
def test_config_path(path: str, name: str, expected: str) -> None:
    assert config_path(git_path(path, name)) == expected
