# SPDX-License-Identifier: Apache-2.0
"""What identifies an object of a cluster."""

from dataclasses import dataclass

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, order=True)
class Key:
    """An object by API version, kind, namespace and name; no namespace is an empty one."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def group(self) -> str:
        """The API group, empty for the core one."""
        group, slash, _ = self.api_version.rpartition("/")
        return group if slash else ""

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What two keys of the same object have in common, whatever version they were read in."""
        namespace = "" if self.namespace == DEFAULT_NAMESPACE else self.namespace
        return self.group.lower(), self.kind.lower(), namespace, self.name

    @property
    def first_generation_text(self) -> str:
        """The text that upstream's first generation writes on an object."""
        namespace = self.namespace or DEFAULT_NAMESPACE
        return f"{self.api_version}:{self.kind}:{namespace}:{self.name}"

    @property
    def text(self) -> str:
        """The text that upstream's second generation writes on an object."""
        return f"{self.group}:{self.kind}:{self.namespace}:{self.name}"

    def __str__(self) -> str:
        """The object as people name it."""
        place = f" in {self.namespace}" if self.namespace else ""
        return f"{self.kind} {self.name}{place}"
