# SPDX-License-Identifier: Apache-2.0
"""The address of something in a registry, as `oci://HOST/REPOSITORY[:TAG][@DIGEST]`."""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from pipecd.model.errors import UserMistake

_REPOSITORY = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Reference:
    """A registry, a repository in it, and what is wanted of that."""

    host: str
    repository: str
    tag: str = "latest"
    digest: str = ""

    @property
    def wanted(self) -> str:
        """What to ask the registry for: the digest, which cannot change, before the tag."""
        return self.digest or self.tag

    @property
    def is_on_loopback(self) -> bool:
        """Whether the registry is on this machine, where there is nobody to hide from."""
        name = urlsplit(f"//{self.host}").hostname or ""
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return name == "localhost"

    def __str__(self) -> str:
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.host}/{self.repository}:{self.tag}{digest}"


def parse_reference(url: str) -> Reference:
    """Reads an address; raises `UserMistake` for one that is none."""
    rest = url.removeprefix("oci://")
    host, _, path = rest.partition("/")
    path, _, digest = path.partition("@")
    repository, colon, tag = path.partition(":")
    is_right = (
        host
        and _REPOSITORY.fullmatch(repository)
        and (not colon or _TAG.fullmatch(tag))
        and (not digest or DIGEST.fullmatch(digest))
        and ("@" in rest) == bool(digest)
    )
    if not is_right:
        raise UserMistake(
            f"{url} is not the address of anything in a registry",
            hint="write oci://HOST/REPOSITORY:TAG or oci://HOST/REPOSITORY@sha256:DIGEST",
        )
    return Reference(host, repository, tag or "latest", digest)
