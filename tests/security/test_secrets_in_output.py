# SPDX-License-Identifier: Apache-2.0
"""Secrets in output: copied to other applications, printed by an unmerged branch, or encoded.

The attackers are a developer who may push to a repository of the piped and wants the secret of an
application in it, and a program or plugin that prints its secrets in some encoding.
"""

import base64
import hashlib
import io
import json
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote, quote_plus

import httpx2
import pytest
import structlog

from pipecd.controlplane.api.rest import PREFIX
from pipecd.model.errors import UserMistake
from pipecd.observe.log import masking
from pipecd.piped.planpreview.result import mask
from pipecd.piped.pluginhost.masking import LogMasker, SecretMasks
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.model.planpreview_pb2 import ApplicationPlanPreviewResult, PluginPlanPreviewResult
from pipecd.secrets import hybrid
from pipecd.secrets.binding import Binding
from pipecd.secrets.decrypter import Decrypter
from servers.control_plane import OpenControlPlane, StartControlPlane, open_control_plane
from servers.environment import open_environment
from servers.origin import Origin
from servers.planpreview import OpenPreviews, PreviewEnvironment

VECTORS = Path(__file__).parent.parent / "spec" / "vectors"
PRIVATE = (VECTORS / "secret_private.pem").read_bytes()
PUBLIC = (VECTORS / "secret_public.pem").read_bytes()

SECRET = "hunter22-and-co"
CART = Binding("shop", "site", "cart/app.pipecd.yaml")
WEB = Binding("shop", "site", "web/app.pipecd.yaml")
PREFIX_OF_BOUND = "bound.v1."


@pytest.fixture
def decrypter() -> Decrypter:
    return Decrypter(PUBLIC, [hybrid.PrivateKey(PRIVATE)])


def parts(text: str) -> tuple[bytes, bytes]:
    """The encrypted key of a secret with its length, and the encrypted content."""
    sealed = base64.b64decode(text.removeprefix(PREFIX_OF_BOUND))
    end = 2 + int.from_bytes(sealed[:2])
    return sealed[:end], sealed[end:]


def of_parts(key: bytes, content: bytes) -> str:
    return base64.b64encode(key + content).decode()


def own_secret(binding: Binding | None) -> str:
    """A secret that the attacker encrypts for an application of theirs."""
    return hybrid.encrypt(PUBLIC, "the attacker's own", binding=binding)


@dataclass(frozen=True)
class Copy:
    """A secret of the application cart, altered by `change`, in the file `into`."""

    into: Binding
    change: Callable[[str], str] = str


ATTACKS_COPIES = {
    "a copy in another application": Copy(WEB),
    "a copy in another file of the same directory": Copy(
        Binding("shop", "site", "cart/staging.pipecd.yaml")
    ),
    "a copy in a subdirectory": Copy(Binding("shop", "site", "cart/cart/app.pipecd.yaml")),
    "a copy in a file whose name differs in case": Copy(
        Binding("shop", "site", "Cart/app.pipecd.yaml")
    ),
    "a copy at the same path of another repository": Copy(
        Binding("shop", "fork", "cart/app.pipecd.yaml")
    ),
    "a copy in another project whose piped has the same key": Copy(
        Binding("other", "site", "cart/app.pipecd.yaml")
    ),
    "a path that moves from the repository id to the file": Copy(
        Binding("shop", "site/cart", "app.pipecd.yaml")
    ),
    "a repository id that imitates the separators of the fields": Copy(
        Binding("shop", 'site", "cart/app.pipecd.yaml', "")
    ),
    "without the prefix, as a secret of upstream": Copy(
        WEB, lambda text: text.removeprefix(PREFIX_OF_BOUND)
    ),
    "without the prefix, in its own file": Copy(
        CART, lambda text: text.removeprefix(PREFIX_OF_BOUND)
    ),
    "its key with the content of a secret of the attacker": Copy(
        WEB, lambda text: PREFIX_OF_BOUND + of_parts(parts(text)[0], parts(own_secret(WEB))[1])
    ),
    "its content with the key of a secret of the attacker": Copy(
        WEB, lambda text: PREFIX_OF_BOUND + of_parts(parts(own_secret(WEB))[0], parts(text)[1])
    ),
    "its content without authentication": Copy(
        WEB, lambda text: PREFIX_OF_BOUND + of_parts(parts(text)[0], parts(text)[1][:-16])
    ),
    "folded into lines, with a line break in the prefix": Copy(
        WEB, lambda text: "\n".join(textwrap.wrap(text, 5))
    ),
    "with the prefix twice": Copy(WEB, lambda text: PREFIX_OF_BOUND + text),
}


@pytest.mark.parametrize("attack", ATTACKS_COPIES.values(), ids=ATTACKS_COPIES)
def test_a_bound_secret_decrypts_nowhere_else(attack: Copy, decrypter: Decrypter) -> None:
    encrypted = hybrid.encrypt(PUBLIC, SECRET, binding=CART)
    # The key may be cached since the application itself was deployed.
    assert decrypter.decrypt(encrypted, CART) == SECRET
    with pytest.raises(UserMistake) as caught:
        decrypter.decrypt(attack.change(encrypted), attack.into)
    assert SECRET not in str(caught.value)


def test_secrets_of_upstream_still_decrypt(decrypter: Decrypter) -> None:
    assert decrypter.decrypt(hybrid.encrypt(PUBLIC, SECRET), WEB) == SECRET


CONFIG = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: NAME
  plugins: {platform: {}}
  encryption: {encryptedSecrets: {password: ENCRYPTED}, decryptionTargets: [tag]}
"""
PASSWORD = "{{ .encryptedSecrets.password }}"


def application(name: str, encrypted: str, template: str = PASSWORD) -> dict[str, str]:
    config = CONFIG.replace("NAME", name).replace("ENCRYPTED", encrypted)
    return {f"{name}/app.pipecd.yaml": config, f"{name}/tag": template}


@dataclass(frozen=True)
class Template:
    """A template of a branch, and what its preview would show of the secret."""

    text: str
    shown: str


SPACED_HEX = SECRET.encode().hex(" ")

ATTACKS_TEMPLATES = {
    "the first letters": Template("{{ trunc 7 .encryptedSecrets.password }}", "hunter2"),
    "the last letters": Template("{{ trunc -6 .encryptedSecrets.password }}", "and-co"),
    "in capitals": Template("{{ upper .encryptedSecrets.password }}", SECRET.upper()),
    "letter by letter": Template(
        '{{ range splitList "" .encryptedSecrets.password }}{{ . }}~{{ end }}', "h~u~n~t~e~r~"
    ),
    "with other letters in it": Template(
        '{{ replace "2" "2." .encryptedSecrets.password }}', "hunter2.2."
    ),
    "in base32": Template(
        "{{ b32enc .encryptedSecrets.password }}", base64.b32encode(SECRET.encode()).decode()
    ),
    "in hex with spaces": Template('{{ printf "% x" .encryptedSecrets.password }}', SPACED_HEX),
    "in base64 twice": Template(
        "{{ .encryptedSecrets.password | b64enc | b64enc }}",
        base64.b64encode(base64.b64encode(SECRET.encode())).decode(),
    ),
    "its hash, to be guessed": Template(
        "{{ sha256sum .encryptedSecrets.password }}",
        hashlib.sha256(SECRET.encode()).hexdigest(),
    ),
    "its length": Template("it has {{ len .encryptedSecrets.password }} letters", "it has 15 "),
    "whether a guess is right": Template(
        '{{ if hasPrefix "hunter" .encryptedSecrets.password }}yes, it is{{ end }}', "yes, it is"
    ),
    "in the error of a template": Template(
        "{{ fail (upper .encryptedSecrets.password) }}", SECRET.upper()
    ),
}


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin.begin(tmp_path / "origin")


@pytest.fixture
def open_plane(tmp_path: Path) -> OpenControlPlane:
    return partial(open_control_plane, tmp_path)


@pytest.fixture
def open_previews(open_plane: OpenControlPlane, origin: Origin) -> OpenPreviews:
    return partial(open_environment, PreviewEnvironment, open_plane, origin)


@pytest.fixture
def open_guarded_previews(open_previews: OpenPreviews, decrypter: Decrypter) -> OpenPreviews:
    """Previews of a piped with the default settings."""
    return partial(open_previews, decrypt=decrypter.decrypt, decrypt_unmerged=decrypter.placeholder)


def bound_in(env: PreviewEnvironment, path: str) -> str:
    binding = Binding(env.plane.admin.project, "site", path)
    return hybrid.encrypt(PUBLIC, SECRET, binding=binding)


@pytest.mark.parametrize("attack", ATTACKS_TEMPLATES.values(), ids=ATTACKS_TEMPLATES)
async def test_the_preview_of_a_branch_shows_nothing_of_a_secret(
    attack: Template, open_guarded_previews: OpenPreviews, decrypter: Decrypter, origin: Origin
) -> None:
    async with open_guarded_previews() as env:
        encrypted = bound_in(env, "cart/app.pipecd.yaml")
        first = origin.commit(application("cart", encrypted))
        async with env.previewing():
            await env.add_application("cart", deployed=first)
            result = await env.preview(env.push_branch({"cart/tag": attack.text}))
    [shown] = result.results
    assert shown.plugin_plan_results or shown.error
    assert attack.shown not in str(shown)
    assert decrypter.known.hide(SECRET) == SECRET, "it has not been decrypted"


async def test_a_commit_of_the_branch_is_decrypted_and_a_branch_shows_its_changes(
    open_guarded_previews: OpenPreviews, decrypter: Decrypter, origin: Origin
) -> None:
    async with open_guarded_previews() as env:
        encrypted = bound_in(env, "cart/app.pipecd.yaml")
        first = origin.commit(application("cart", encrypted))
        second = origin.commit({"cart/tag": f"{PASSWORD}-2"})
        async with env.previewing():
            await env.add_application("cart", deployed=first)
            unmerged = await env.preview(env.push_branch({"cart/tag": f"{PASSWORD}-3"}))
            assert decrypter.known.hide(SECRET) == SECRET
            merged = await env.preview(second, "main")
    assert decrypter.known.hide(SECRET) == "******"
    assert unmerged.results[0].plan_details == b"- ******\n+ ******-3\n"
    assert merged.results[0].plan_details == b"- ******\n+ ******-2\n"


async def test_a_preview_shows_which_secrets_change(
    open_guarded_previews: OpenPreviews, origin: Origin
) -> None:
    async with open_guarded_previews() as env:
        texts = [bound_in(env, f"{name}/app.pipecd.yaml") for name in ("cart", "web", "web")]
        cart, web, new_web = texts
        first = origin.commit({**application("cart", cart), **application("web", web)})
        async with env.previewing():
            await env.add_application("cart", deployed=first)
            await env.add_application("web", deployed=first)
            head = env.push_branch({**application("web", new_web), "cart/other": "file"})
            result = await env.preview(head)
    no_change = {each.application_name: each.no_change for each in result.results}
    assert no_change == {"cart": True, "web": False}


async def test_a_copied_secret_fails_its_application_and_is_not_shown(
    open_guarded_previews: OpenPreviews, origin: Origin
) -> None:
    async with open_guarded_previews() as env:
        encrypted = bound_in(env, "cart/app.pipecd.yaml")
        first = origin.commit({"web/app.pipecd.yaml": CONFIG.replace("ENCRYPTED", encrypted)})
        head = origin.commit({**application("cart", encrypted), **application("web", encrypted)})
        async with env.previewing():
            await env.add_application("cart", deployed="")
            await env.add_application("web", deployed=first)
            result = await env.preview(head, "main")
    errors = {each.application_name: each.error for each in result.results}
    assert errors["cart"] == ""
    assert "it was encrypted for another file than web/app.pipecd.yaml" in errors["web"]
    assert SECRET not in str(result)


PRIVATE_LINES = "\n".join(f"{n}PlantedLine{n * 7919}Of/The+Key" for n in range(1, 4))
QUOTED = 'pass\'word&<42>/"quoted"+é'


@dataclass(frozen=True)
class Encoding:
    """A secret as a program prints it."""

    secret: str
    printed: Callable[[str], str]


def in_hex(text: str) -> str:
    return text.encode().hex()


ATTACKS_ENCODINGS = {
    "as it is": Encoding(SECRET, str),
    "in hex": Encoding(SECRET, in_hex),
    "in hex of capitals": Encoding(SECRET, lambda s: in_hex(s).upper()),
    "in hex with a prefix": Encoding(SECRET, lambda s: f"0x{in_hex(s)}"),
    "in hex after other bytes": Encoding(SECRET, lambda s: in_hex(f"password={s};")),
    "in hex of several lines": Encoding(
        PRIVATE_LINES, lambda s: "\n".join(textwrap.wrap(in_hex(s), 60))
    ),
    "one line of several, in hex": Encoding(PRIVATE_LINES, lambda s: in_hex(s.split("\n")[1])),
    "a key in hex, in other letters": Encoding("0badcafe" * 8, str.upper),
    "in base64": Encoding(SECRET, lambda s: base64.b64encode(s.encode()).decode()),
    "in base64 after other bytes": Encoding(
        SECRET, lambda s: base64.b64encode(f"user:{s}".encode()).decode()
    ),
    "in base64 of URLs": Encoding(QUOTED, lambda s: base64.urlsafe_b64encode(s.encode()).decode()),
    "in a URL": Encoding(QUOTED, lambda s: quote(s, safe="")),
    "in a form": Encoding(QUOTED, quote_plus),
    "in JSON": Encoding(QUOTED, lambda s: json.dumps({"a": s})),
    "in JSON in JSON": Encoding(QUOTED, lambda s: json.dumps(json.dumps({"a": s}))),
    "quoted by a shell": Encoding(QUOTED, lambda s: s.replace("'", "'\\''")),
    "line by line": Encoding(PRIVATE_LINES, lambda s: s.replace("\n", "\n+ ")),
}


def in_stage_log(secret: str, printed: str) -> str:
    """The log of a stage, whose requests cut the printed text in two."""
    masks = SecretMasks()
    masks.add("d", [secret])
    masker, half = LogMasker(masks, "d"), len(printed) // 2
    first = masker.hide([LogBlock(index=0, log=printed[:half])])
    second = masker.hide([LogBlock(index=1, log=printed[half:])], is_end=True)
    return "".join(block.log for block in (*first, *second))


def in_status_reason(secret: str, printed: str) -> str:
    """The reason of a failed deployment, which notifications and console pages show."""
    masks = SecretMasks()
    masks.add("d", [secret])
    return masks.hide("d", f"exit status 1: {printed}")


def in_plan_preview(secret: str, printed: str) -> str:
    """The result of a plan preview with everything that a plugin answers."""
    masks = SecretMasks()
    masks.add("d", [secret])
    details = PluginPlanPreviewResult(
        plan_summary=printed.encode(), plan_details=f"+ {printed}".encode()
    )
    result = ApplicationPlanPreviewResult(
        error=printed, plan_details=printed.encode(), plugin_plan_results=[details]
    )
    mask(result, masks.of("d"))
    [plugin] = result.plugin_plan_results
    texts = (result.plan_details, plugin.plan_summary, plugin.plan_details)
    return result.error + "".join(text.decode() for text in texts)


def in_log_of_piped(secret: str, printed: str) -> str:
    """The log of piped itself, as JSON."""
    masks, output = SecretMasks(), io.StringIO()
    masks.all.add([secret])
    before = structlog.get_config()
    logger_factory = structlog.PrintLoggerFactory(file=output)
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()], logger_factory=logger_factory
    )
    try:
        with masking(masks.all.hide):
            structlog.get_logger().warning("plugin failed", error=printed)
    finally:
        structlog.configure(**before)
    return str(json.loads(output.getvalue())["error"])


PLACES = {
    "the log of a stage": in_stage_log,
    "a status reason": in_status_reason,
    "a plan preview": in_plan_preview,
    "the log of piped": in_log_of_piped,
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("attack", ATTACKS_ENCODINGS.values(), ids=ATTACKS_ENCODINGS)
def test_an_encoded_secret_is_masked(attack: Encoding, place: Callable[[str, str], str]) -> None:
    printed = attack.printed(attack.secret)
    shown = place(attack.secret, printed)
    assert "******" in shown
    around = windows(attack.printed(re.sub(r"[^\n]", "x", attack.secret)))
    leaked = [each for each in windows(printed) - around if each.isalnum() and each in shown]
    assert leaked == []


def windows(text: str, length: int = 8) -> set[str]:
    return {text[i : i + length] for i in range(len(text) - length + 1)}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_other_output_is_shown(place: Callable[[str, str], str]) -> None:
    assert "deployment.apps/cart configured" in place(SECRET, "deployment.apps/cart configured")


ATTACKS_REQUESTS = {
    "a piped that does not exist": json.dumps({"plaintext": SECRET}),
    "a wrong type": json.dumps({"plaintext": {"value": SECRET}}),
    "a list": json.dumps({"plaintext": [SECRET]}),
    "an unknown field": json.dumps({"plain_text": SECRET}),
    "text that is not JSON": f'{{"plaintext": "{SECRET}"',
}


@pytest.mark.parametrize("attack", ATTACKS_REQUESTS.values(), ids=ATTACKS_REQUESTS)
async def test_a_rejected_request_to_encrypt_a_secret_is_not_logged(
    attack: str, start_plane: StartControlPlane, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with start_plane() as plane:
        authorization = f"Bearer {plane.api_key}"
        headers = {"authorization": authorization, "content-type": "application/json"}
        async with httpx2.AsyncClient(headers=headers) as client:
            address = f"http://{plane.address}{PREFIX}/pipeds/nobody/encrypt"
            response = await client.post(address, content=attack)
    assert response.status_code in (400, 404)
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err
    assert files_with(SECRET, tmp_path) == []


def files_with(secret: str, directory: Path) -> list[Path]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [file for file in files if secret.encode() in file.read_bytes()]
