# SPDX-License-Identifier: Apache-2.0
"""The behaviour that all types of filestores share."""

import asyncio

import pytest

from pipecd.config.controlplane import FilestoreSpec
from pipecd.controlplane.filestore import FileChanged, Files
from pipecd.controlplane.filestore.open import open_filestore
from pipecd.model.errors import NotFound, UserMistake


async def test_an_object_is_read_back_and_replaced_as_a_whole(files: Files) -> None:
    path = "log/d/étape 1/0.txt"
    await files.put(path, b"first and longer")
    await files.put(path, b"\xff\x00\r\nx\r\n")
    assert await files.get(path) == b"\xff\x00\r\nx\r\n"
    await files.put(path, b"")
    assert await files.get(path) == b""


async def test_a_large_object_is_read_back(files: Files) -> None:
    content = bytes(range(256)) * 40_000
    await files.put("insights/large.json", content)
    assert await files.get("insights/large.json") == content


async def test_a_missing_object_is_not_found(files: Files) -> None:
    for path in ("missing", "log/missing/x.txt"):
        with pytest.raises(NotFound, match=path):
            await files.get(path)


async def test_a_deleted_object_is_gone_and_a_missing_one_no_error(files: Files) -> None:
    await files.put("a/b", b"x")
    await files.delete("a/b")
    for path in ("a/b", "never"):
        await files.delete(path)
    with pytest.raises(NotFound):
        await files.get("a/b")
    assert await files.list("") == ()


async def test_all_paths_with_a_prefix_are_listed(files: Files) -> None:
    paths = ["z", "a/bc.json", *(f"a/b/{i}.json" for i in range(8))]
    await asyncio.gather(*(files.put(path, b"") for path in paths))
    for prefix in ("", "a/", "a/b", "a/b/", "a/b/3.json", "a/x/", "y"):
        expected = tuple(sorted(path for path in paths if path.startswith(prefix)))
        assert await files.list(prefix) == expected


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("../outside", id="up"),
        pytest.param("/etc/passwd", id="absolute"),
        pytest.param("a//b", id="an empty part"),
        pytest.param("a/", id="a directory"),
        pytest.param("", id="nothing"),
        pytest.param("a\0b", id="a zero byte"),
        pytest.param("a" * 256, id="a long part"),
        pytest.param("/".join(["abcdefgh"] * 130), id="a long path"),
        pytest.param(".incoming/x", id="the place of unfinished objects"),
    ],
)
async def test_every_filestore_rejects_the_same_paths(files: Files, path: str) -> None:
    for call in (
        *(files.get(path), files.put(path, b""), files.delete(path)),
        *(files.get_versioned(path), files.replace(path, b"", version="")),
    ):
        with pytest.raises(UserMistake):
            await call
    with pytest.raises(UserMistake):
        await files.list("../")


async def test_an_object_is_replaced_only_if_it_is_still_the_one_that_was_read(
    files: Files,
) -> None:
    path = "log/d/s/0.txt"
    with pytest.raises(NotFound):
        await files.get_versioned(path)
    with pytest.raises(FileChanged, match=path):
        await files.replace(path, b"of no object", version=await version_of_a_removed(files))
    await files.replace(path, b"first", version="")
    with pytest.raises(FileChanged):
        await files.replace(path, b"late", version="")
    first = await files.get_versioned(path)
    assert first.content == b"first"
    await files.replace(path, b"second", version=first.version)
    with pytest.raises(FileChanged):
        await files.replace(path, b"late", version=first.version)
    assert await files.get(path) == b"second"
    await files.put(path, b"third")
    third = await files.get_versioned(path)
    await files.replace(path, b"fourth", version=third.version)
    assert await files.get(path) == b"fourth"


async def version_of_a_removed(files: Files) -> str:
    await files.put("removed", b"x")
    version = (await files.get_versioned("removed")).version
    await files.delete("removed")
    return version


async def test_one_of_many_concurrent_replacements_succeeds(
    files: Files, spec: FilestoreSpec
) -> None:
    await files.put("a", b"before")
    before = await files.get_versioned("a")
    async with open_filestore(spec) as others:

        async def replace(number: int) -> int | None:
            store = files if number % 2 else others
            try:
                await store.replace("a", str(number).encode(), version=before.version)
            except FileChanged:
                return None
            return number

        results = await asyncio.gather(*(replace(number) for number in range(20)))
    (written,) = [number for number in results if number is not None]
    assert await files.get("a") == str(written).encode()


async def test_concurrent_calls_all_succeed(files: Files) -> None:
    await asyncio.gather(*(files.put(f"n/{i}", str(i).encode()) for i in range(50)))
    found = await asyncio.gather(*(files.get(f"n/{i}") for i in range(50)))
    assert found == [str(i).encode() for i in range(50)]


async def test_a_second_client_reads_what_the_first_wrote(
    files: Files, spec: FilestoreSpec
) -> None:
    await files.put("a", b"x")
    async with open_filestore(spec) as others:
        assert await others.get("a") == b"x"
