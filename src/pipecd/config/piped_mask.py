# SPDX-License-Identifier: Apache-2.0
"""The configuration of a piped without its secrets, as the control plane may see it."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from pipecd.config.piped import PipedSpec
from pipecd.config.spec import plain

MASK = "******"

_CONFIDENTIAL = frozenset(
    {
        "pipedKeyFile",
        "pipedKeyData",
        "sshConfigFilePath",
        "sshKeyFile",
        "sshKeyData",
        "password",
        "hookURL",
        "oauthToken",
        "oauthTokenData",
        "signatureKey",
        "signatureValue",
        "signatureValueFile",
        "signingSecret",
        "privateKeyFile",
        "privateKeyData",
        "decryptServiceAccountFile",
        "encryptServiceAccountFile",
    }
)
_SECRET_WORD = re.compile(
    r"key|token|passw|passphrase|secret|credential|data|auth|private|account|role|cert|hook",
    re.IGNORECASE,
)
_ALWAYS_SHOWN = ("git", "notifications", "eventWatcher", "planPreview")
_USER_IN_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?P<user>[^/@\s]+)@", re.IGNORECASE)
_IN_QUERY = re.compile(r"(?P<name>[?&][^=&\s]*)=[^&\s]+")
_ASSIGNMENT = re.compile(r"(?P<name>[\w.\-\[\]\"']+)=(?P<value>.+)", re.DOTALL)


def reported_config(spec: PipedSpec) -> str:
    """Return the YAML a piped reports about itself, with `******` in place of every secret."""
    return yaml.safe_dump(masked(spec), sort_keys=True, allow_unicode=True)


def masked(spec: PipedSpec) -> dict[str, Any]:
    """Return a piped's configuration as its file would write it, secrets masked, blanks left out.

    What a plugin calls its secrets is not known here, so inside `plugins` everything whose key
    sounds like one is masked.
    """
    written = plain(spec)
    plugins = [_plugin(plugin) for plugin in written.pop("plugins")]
    for receiver in written["notifications"]["receivers"]:
        if webhook := receiver.get("webhook"):
            webhook["url"] = webhook["url"] and MASK
    shown = {key: {} for key in _ALWAYS_SHOWN} | _hide(written, _CONFIDENTIAL.__contains__)
    return shown | ({"plugins": plugins} if plugins else {})


def _plugin(plugin: Mapping[str, Any]) -> dict[str, Any]:
    """Return one plugin; only the parts the plugin itself reads are searched for secrets."""
    targets = [
        {**target, "config": _hide(target["config"], _sounds_secret)}
        for target in plugin["deployTargets"]
    ]
    config = _hide(plugin["config"], _sounds_secret)
    # A port of 0 is none.
    shown = {**plugin, "port": plugin["port"] or None, "config": config, "deployTargets": targets}
    return _hide(shown, lambda _: False)


def _sounds_secret(key: str) -> bool:
    return _SECRET_WORD.search(key) is not None


def _hide(value: Any, is_secret: Callable[[str], bool], *, secret: bool = False) -> Any:
    """Return `value` without blanks, with every scalar under a secret key masked."""
    match value:
        case Mapping():
            items: Mapping[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
            hidden = {
                k: _hide(v, is_secret, secret=secret or is_secret(k)) for k, v in items.items()
            }
            return {k: v for k, v in hidden.items() if not _is_blank(v)}
        case list() | tuple():
            elements: list[Any] | tuple[Any, ...] = value  # pyright: ignore[reportUnknownVariableType]
            return [_hide(item, is_secret, secret=secret) for item in elements]
        case str() if secret and value:
            return MASK
        case str():
            return _hide_in_text(value)
        case bool() | None:
            return value
        case _:
            return MASK if secret else value


def _hide_in_text(text: str) -> str:
    """Mask the password of a URL and the value of every `name=value` whose name sounds secret."""
    assignment = _ASSIGNMENT.fullmatch(text)
    if assignment and _sounds_secret(assignment["name"]):
        return f"{assignment['name']}={MASK}"
    return _IN_QUERY.sub(_without_value, _USER_IN_URL.sub(_without_password, text))


def _without_value(match: re.Match[str]) -> str:
    return f"{match['name']}={MASK}" if _sounds_secret(match["name"]) else match[0]


def _without_password(match: re.Match[str]) -> str:
    scheme, user = match["scheme"], match["user"]
    if ":" in user:
        return f"{scheme}{user.partition(':')[0]}:{MASK}@"
    # A lone word before the host is a token over HTTP, and only a login name over SSH.
    return match[0] if scheme.lower().startswith("ssh") else f"{scheme}{MASK}@"


def _is_blank(value: object) -> bool:
    return value is None or value in ("", {}, [])
