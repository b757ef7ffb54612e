# SPDX-License-Identifier: Apache-2.0
"""The plugins of a piped and the places they deploy to."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator

from pipecd.config.rule import must_be_set, refuse
from pipecd.config.spec import Spec

BUILTIN = "builtin"
SCHEMES = ("file", "https", "oci", BUILTIN)
_CHECKSUM = re.compile(r"sha256:[0-9a-fA-F]{64}")


class DeployTargetSpec(Spec):
    """One place a plugin deploys to, such as a cluster or an account."""

    name: Annotated[str, Field(validate_default=True), must_be_set("name")] = ""
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])
    config: Mapping[str, Any] = Field(default_factory=dict[str, Any])


class PluginSpec(Spec):
    """One plugin: where its program comes from, its settings and its deploy targets.

    Without `url`, or with `builtin://NAME`, it is the plugin of that name shipped with piped.
    """

    name: Annotated[str, Field(validate_default=True), must_be_set("name")] = ""
    source_url: Annotated[str, Field(alias="sourceURL", exclude=True)] = ""
    url: str = Field(default="", validate_default=True)
    checksum: str = Field(default="", validate_default=True)
    port: int = Field(default=0, ge=0, le=65535)
    config: Mapping[str, Any] = Field(default_factory=dict[str, Any])
    deploy_targets: tuple[DeployTargetSpec, ...] = ()

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: str, info: ValidationInfo) -> str:
        source_url: str = info.data.get("source_url", "")
        if url and source_url and url != source_url:
            raise ValueError("url and sourceURL differ, write only one of them")
        url = url or source_url
        if not url:
            return url
        try:
            parts = urlsplit(url)
        except ValueError as e:
            raise ValueError(f"invalid plugin url: {e}") from e
        if parts.scheme not in SCHEMES:
            raise ValueError("only file, https and oci schemes are supported")
        if parts.scheme == BUILTIN and not parts.netloc:
            raise ValueError("invalid plugin url: write builtin://NAME")
        return url

    @field_validator("checksum")
    @classmethod
    def _is_sha256(cls, checksum: str, info: ValidationInfo) -> str:
        if not checksum:
            return checksum
        if not _CHECKSUM.fullmatch(checksum):
            raise ValueError("write sha256: and the 64 digits that sha256sum prints")
        url: str = info.data.get("url", "")
        if urlsplit(url).scheme in ("", BUILTIN):
            raise ValueError("only a plugin with a url of its program has a checksum")
        return checksum.lower()

    @model_validator(mode="after")
    def _targets_differ(self) -> Self:
        names = [target.name for target in self.deploy_targets]
        refuse(
            self,
            *(
                (
                    name in names[:i],
                    ("deployTargets", i, "name"),
                    f"two deploy targets are named {name}",
                )
                for i, name in enumerate(names)
            ),
        )
        return self

    @property
    def builtin(self) -> str:
        """Return the name of the built-in plugin this is, or "" for a program of its own."""
        if not self.url:
            return self.name
        parts = urlsplit(self.url)
        # netloc keeps the case of the name, which hostname would fold.
        return parts.netloc if parts.scheme == BUILTIN else ""
