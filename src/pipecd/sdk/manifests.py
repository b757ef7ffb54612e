# SPDX-License-Identifier: Apache-2.0
"""The manifest of an application that declares one object, such as a function or a service."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipecd.model.count import counted
from pipecd.model.errors import UserMistake
from pipecd.sdk.deployment import Source
from pipecd.sdk.diff import Node, Options, compare, is_map, render
from pipecd.sdk.files import read_contained
from pipecd.sdk.livestate import Preview
from pipecd.sdk.unstructured import Body, text_at
from pipecd.sdk.yaml import read_documents

_MAX_BYTES = 1024**2


@dataclass(frozen=True)
class ManifestType:
    """What a manifest declares; `noun` names it in messages, `setting` the key with its file."""

    api_version: str
    kind: str
    noun: str
    setting: str

    def read(self, source: Source, file: str) -> Body:
        """Reads the only document of a file in the directory of an application."""
        path = source.application_directory / file
        try:
            content = read_contained(source.working_copy, path, limit=_MAX_BYTES)
        except UserMistake as e:
            raise UserMistake(
                f"{file} cannot be read: {e.message}",
                hint=f"name the manifest of the {self.noun} at {self.setting}",
            ) from e
        documents = read_documents(content.decode("utf-8", "replace"), file=file)
        if len(documents) != 1:
            raise UserMistake(f"{file} must have one document, and it has {len(documents)}")
        value = documents[0].value
        kind = (text_at(value, "apiVersion"), text_at(value, "kind"))
        if not is_map(value) or kind != (self.api_version, self.kind):
            found = " ".join(filter(None, kind)) or "something else"
            raise UserMistake(
                f"{file} must be a {self.kind} of {self.api_version}, and it is {found}"
            )
        return value

    def ignored_paths(self, ignored: Mapping[str, Iterable[str]], name: str) -> frozenset[str]:
        """Returns the paths of the keys `apiVersion:kind:namespace:name` with this kind and name.

        Such an object has no namespace, so any one will do.
        """
        return frozenset(
            path
            for key, paths in ignored.items()
            if (*key.split(":"), "", "", "", "")[1:4:2] == (self.kind, name)
            for path in paths
        )

    def preview(
        self,
        target: str,
        running: tuple[str, Body] | None,
        desired: tuple[str, Body],
        options: Options,
    ) -> Preview:
        """Compares the running manifest with that of a change; both come with their names."""
        name, body = desired
        if running is None or running[0] != name:
            summary = f"{self.noun.capitalize()} {name} is created"
            if running is not None:
                summary += f", and {self.noun} {running[0]} is left as it is"
            return Preview(target, summary, _details(compare({}, body, options)))
        changes = compare(running[1], body, options)
        if not changes:
            return Preview(target, "No changes were detected", no_change=True)
        detected = counted(len(changes), "change was", "changes were")
        return Preview(target, f"{detected} detected", _details(changes))


def _details(changes: Sequence[Node]) -> str:
    return f"--- Last Deploy\n+++ Head Commit\n\n{render(changes)}\n"
