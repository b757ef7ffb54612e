# SPDX-License-Identifier: Apache-2.0
"""Masks the secrets in the configuration that piped reports to the control plane."""

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import yaml

from pipecd.config.piped import PipedSpec
from pipecd.config.spec import plain

MASK = "******"

_SECRET_KEYS = frozenset(
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
_SECRET_NAME = re.compile(
    r"key|token|passw|passphrase|secret|credential|data|auth|private|account|role|cert|hook",
    re.IGNORECASE,
)
_ALWAYS_SHOWN = ("git", "notifications", "eventWatcher", "planPreview")
_USER_IN_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?P<user>[^/@\s]+)@", re.IGNORECASE)
_QUERY_PARAMETER = re.compile(r"(?P<name>[?&][^=&\s]*)=[^&\s]+")
_ASSIGNMENT = re.compile(r"(?P<name>[\w.\-\[\]\"']+)=(?P<value>.+)", re.DOTALL)


def reported_config(spec: PipedSpec) -> str:
    """Return the configuration that piped reports, as YAML with `******` for every secret."""
    return yaml.safe_dump(masked(spec), sort_keys=True, allow_unicode=True)


def masked(spec: PipedSpec) -> dict[str, Any]:
    """Return the configuration of piped as plain values, secrets masked and blanks left out.

    The keys of plugin settings are unknown here, so inside `plugins` every value whose key looks
    like that of a secret is masked.
    """
    config = plain(spec)
    plugins: list[Any] = []
    for plugin in config.pop("plugins"):
        targets = [
            {**target, "config": _masked(target["config"], _looks_secret)}
            for target in plugin["deployTargets"]
        ]
        settings = _masked(plugin["config"], _looks_secret)
        # Port 0 means that none is configured.
        port = plugin["port"] or None
        shown = {**plugin, "port": port, "config": settings, "deployTargets": targets}
        plugins.append(_masked(shown, lambda _: False))
    for receiver in config["notifications"]["receivers"]:
        if webhook := receiver.get("webhook"):
            webhook["url"] = webhook["url"] and MASK
    shown = {key: {} for key in _ALWAYS_SHOWN} | _masked(config, _SECRET_KEYS.__contains__)
    return shown | ({"plugins": plugins} if plugins else {})


def secret_values(spec: PipedSpec) -> frozenset[str]:
    """Return the secrets that the configuration contains, as written and decoded from base64."""
    values = set(_secret_texts(plain(spec)))
    decoded: set[str] = set()
    for value in values:
        with suppress(ValueError):
            decoded.add(base64.b64decode(value, validate=True).decode().strip())
    return frozenset((values | decoded) - {""})


def _secret_texts(value: Any, *, is_secret: bool = False) -> Iterator[str]:
    match value:
        case Mapping():
            items: Mapping[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
            for key, each in items.items():
                is_name = key.endswith(("File", "Path")) or key == "signatureKey"
                yield from _secret_texts(each, is_secret=key in _SECRET_KEYS and not is_name)
        case list():
            elements: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
            for each in elements:
                yield from _secret_texts(each, is_secret=is_secret)
        case str() if is_secret:
            yield value
        case _:
            pass


def _looks_secret(key: str) -> bool:
    return _SECRET_NAME.search(key) is not None


def _masked(value: Any, is_secret: Callable[[str], bool], *, secret: bool = False) -> Any:
    """Return `value` without blanks, with every scalar under a secret key masked."""
    match value:
        case Mapping():
            items: Mapping[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
            values = {
                k: _masked(v, is_secret, secret=secret or is_secret(k)) for k, v in items.items()
            }
            return {k: v for k, v in values.items() if v is not None and v not in ("", {}, [])}
        case list() | tuple():
            elements: list[Any] | tuple[Any, ...] = value  # pyright: ignore[reportUnknownVariableType]
            return [_masked(item, is_secret, secret=secret) for item in elements]
        case str() if secret and value:
            return MASK
        case str():
            return _masked_text(value)
        case bool() | None:
            return value
        case _:
            return MASK if secret else value


def _masked_text(text: str) -> str:
    """Mask credentials in URLs and the value of every `name=value` whose name looks secret."""

    def mask_user(match: re.Match[str]) -> str:
        scheme, user = match["scheme"], match["user"]
        if ":" in user:
            return f"{scheme}{user.partition(':')[0]}:{MASK}@"
        # A user without a password is a token over HTTP, and a login name over SSH.
        return match[0] if scheme.lower().startswith("ssh") else f"{scheme}{MASK}@"

    def mask_parameter(match: re.Match[str]) -> str:
        return f"{match['name']}={MASK}" if _looks_secret(match["name"]) else match[0]

    assignment = _ASSIGNMENT.fullmatch(text)
    if assignment and _looks_secret(assignment["name"]):
        return f"{assignment['name']}={MASK}"
    return _QUERY_PARAMETER.sub(mask_parameter, _USER_IN_URL.sub(mask_user, text))
