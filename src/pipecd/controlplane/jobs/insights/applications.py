# SPDX-License-Identifier: Apache-2.0
"""Writes down which applications each project has."""

from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.insight.applications import (
    ApplicationBook,
    CountedApplication,
    book_path,
    counted,
    write_book,
)
from pipecd.model.clock import Now, to_unix, utc_now


async def collect_applications(stores: Stores, *, now: Now = utc_now) -> int:
    """One file for each project that ever had an application; answers how many there were."""
    books: dict[str, list[CountedApplication]] = {}
    async for part in stores.applications.iterate_all():
        for application in part:
            # A project whose applications are all deleted has none, which the file must say.
            book = books.setdefault(application.project_id, [])
            if not application.deleted:
                book.append(counted(application))
    updated_at = to_unix(now())
    for project, book in books.items():
        content = write_book(ApplicationBook(tuple(book), updated_at))
        await stores.files.put(book_path(project), content)
    return len(books)
