# SPDX-License-Identifier: Apache-2.0
"""The part of the piped configuration that the launcher reads itself.

The rest is ignored: it may be written for a newer version of piped.
"""

from dataclasses import dataclass, field

from pipecd.config.envelope import open_envelope
from pipecd.config.piped import IdentitySpec, piped_key
from pipecd.config.piped_v0 import is_v0
from pipecd.config.read import PIPED, read_kind
from pipecd.model.errors import UserMistake

_FILE = "piped configuration"


@dataclass(frozen=True)
class Identity:
    """The ids and the key of a piped, its control plane, and the version of its configuration."""

    project: str
    piped: str
    address: str
    key: str = field(repr=False)
    is_v0: bool


def identity_of(config: bytes) -> Identity:
    """Reads the identity from a piped configuration; mistakes are reported as piped does."""
    named = read_kind(config, file=_FILE, kind=PIPED, to=IdentitySpec)
    envelope = open_envelope(config, file=_FILE)
    if named is None:
        raise UserMistake(f"wrong configuration kind for piped: {envelope.kind}")
    return Identity(
        project=named.project_id,
        piped=named.piped_id,
        address=named.api_address,
        key=piped_key(named),
        is_v0=is_v0(envelope.spec),
    )
