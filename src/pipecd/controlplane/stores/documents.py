# SPDX-License-Identifier: Apache-2.0
"""What every table of documents can do, whatever holds it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class PageRequest:
    """Which part of a list is wanted; a `size` of 0 means all of it.

    `cursor` is the opaque text of an earlier page. `min_updated_at` cuts off older documents.
    """

    size: int = 0
    cursor: str = ""
    min_updated_at: int = 0


EVERYTHING = PageRequest()


@dataclass(frozen=True)
class Page(Generic[M]):
    """One part of a list; an empty `cursor` means that nothing follows."""

    items: tuple[M, ...]
    cursor: str = ""


class Documents(Protocol[M]):
    """A table of documents of one kind, each with an id.

    Times: `created_at` and `updated_at` are filled when they are 0; every update sets `updated_at`
    to now unless `touch` is false.
    """

    async def get(self, id: str) -> M:
        """The document, or NotFound."""
        ...

    async def get_many(self, ids: tuple[str, ...]) -> dict[str, M]:
        """Those of the documents that exist, by id."""
        ...

    async def add(self, document: M) -> None:
        """Stores a new document, or AlreadyExists; times that are 0 are filled in the given one."""
        ...

    async def update(self, id: str, change: Callable[[M], None], *, touch: bool = True) -> M:
        """Reads, changes in place and writes under a lock; what `change` raises undoes all of it.

        The result is the stored document. No concurrent update is ever lost. `change` may run on
        another thread and, after a lost transaction, once more on a fresh copy: it must touch
        nothing but the document.
        """
        ...
