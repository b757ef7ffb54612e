# SPDX-License-Identifier: Apache-2.0
"""Why an object was refused, in words that say where it stands and what to do."""

from pipecd.plugins.kubernetes.cluster.refusal import Refusal
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.manifest.marks import FORCE_REPLACE
from pipecd.sdk import UserMistake

_CORRECT = "correct the manifest in Git"
_BY_REASON = {"Forbidden": "give the piped a role that allows it", "Invalid": _CORRECT}
_WEBHOOK = "an admission webhook or policy of the cluster refused it; its words say why"
# The first words that a message has decide.
_BY_WORDS = (
    ("being terminated", "wait until the namespace is gone, then sync again"),
    (
        "failed calling webhook",
        "an admission webhook of the cluster does not answer; check that its pods run",
    ),
    ("denied the request", _WEBHOOK),
    ("denied request", _WEBHOOK),
    ("illegal base64 data", f"{_CORRECT}: data is in base64, plain text stands under stringData"),
    (
        "expected string, got",
        f"{_CORRECT}: a number, true or false that is meant as text stands in quotes",
    ),
)
# What servers put before the value that they cannot use.
_VALUE = ", got "


def explained(manifest: Manifest, refusal: Refusal) -> UserMistake:
    """Says which object was refused, in which file it stands, and what to do."""
    where = f" ({manifest.origin})" if manifest.origin else ""
    said = refusal.message
    if manifest.is_builtin("", "Secret"):
        said = said.partition(_VALUE)[0]
    return UserMistake(f"{manifest.key}{where} was not applied: {said}", hint=_hint(refusal))


def _hint(refusal: Refusal) -> str:
    if refusal.is_immutable:
        return (
            f"this field cannot be changed; annotate the manifest with {FORCE_REPLACE}: enabled "
            "to delete and create the object anew"
        )
    for words, hint in _BY_WORDS:
        if words in refusal.message:
            return hint
    if refusal.is_malformed:
        return _CORRECT
    return refusal.hint or _BY_REASON.get(refusal.reason, "")
