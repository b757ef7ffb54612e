# SPDX-License-Identifier: Apache-2.0
"""The sources of what people read as a diff: previews of branches, and changes of deployments."""

from pipecd.config.piped import SecretManagementSpec
from pipecd.piped.source.sources import Sources
from pipecd.secrets.decrypter import Decrypter


def unmerged_sources(
    sources: Sources, management: SecretManagementSpec | None, decrypter: Decrypter | None
) -> Sources:
    """Returns the sources of commits that are not on the application's branch."""
    if management is None or decrypter is None or management.decrypt_in_previews:
        return sources
    return sources.decrypting_with(decrypter.placeholder)


def maskable_sources(sources: Sources, decrypter: Decrypter | None) -> Sources:
    """Returns the sources of commits on the branch, with no secret that cannot be masked."""
    return sources if decrypter is None else sources.decrypting_with(decrypter.decrypt_maskable)
