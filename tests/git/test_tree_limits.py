# SPDX-License-Identifier: Apache-2.0
"""Trees are measured once, and the sizes of those that no recent commit has are not kept."""

import gc
from collections.abc import Sequence

from pipecd.git.tree import TreeEntry
from pipecd.git.tree_limits import TreeLimits, TreeSize, TreeSizes

DIRECTORY, FILE = 0o40000, 0o100644


class Repository:
    """Commits of a directory whose first subdirectory is another one at every commit."""

    def __init__(self, directories: int) -> None:
        self.directories, self.reads = directories, 0

    def root(self, commit: int) -> TreeEntry:
        return TreeEntry("", DIRECTORY, f"root-{commit}")

    async def read_trees(self, ids: Sequence[str]) -> list[tuple[TreeEntry, ...]]:
        self.reads += len(ids)
        return [self._tree(*id_.split("-")) for id_ in ids]

    def _tree(self, kind: str, number: str) -> tuple[TreeEntry, ...]:
        if kind != "root":
            return (TreeEntry("file", FILE, f"file-{number}"),)
        changed = TreeEntry("a", DIRECTORY, f"changed-{number}")
        others = (TreeEntry(f"b{n}", DIRECTORY, f"same-{n}") for n in range(1, self.directories))
        return (changed, *others)

    async def read_sizes(self, ids: Sequence[str]) -> list[int]:
        return [10 for _ in ids]


def tree_sizes() -> list[TreeSize]:
    return [each for each in gc.get_objects() if type(each) is TreeSize]


async def test_sizes_of_old_commits_are_not_kept() -> None:
    repository = Repository(3)
    sizes = TreeSizes(repository.read_trees, repository.read_sizes, TreeLimits())
    # Other tests of this process may have left some.
    gc.collect()
    before = len(tree_sizes())
    for commit in range(3000):
        total = await sizes.check([repository.root(commit)], what="it")
        assert total == TreeSize(7, 30, 2)
    assert len(tree_sizes()) - before < 1000


async def test_only_what_changed_is_read_again_however_many_directories_there_are() -> None:
    repository = Repository(9000)
    sizes = TreeSizes(repository.read_trees, repository.read_sizes, TreeLimits())
    for commit in range(3):
        await sizes.check([repository.root(commit)], what="it")
    assert repository.reads == 9001 + 2 * 2
