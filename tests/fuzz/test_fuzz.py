# SPDX-License-Identifier: Apache-2.0
"""A short campaign with a fixed seed; `make fuzz` runs longer ones with new seeds."""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from fuzz.limits import CPU_SECONDS, cpu_limit, try_input
from fuzz.readers import Reader, check_html, readers
from fuzz.wire import ENDPOINTS, Endpoint, Plane, fuzz_endpoint, open_plane
from pipecd.model.errors import PipecdError

SEED = "2026"
READER_INPUTS = 250
# Each input starts a program.
FEWER_INPUTS = {"archives": 50}
CALLS = {"piped": 600, "api": 400, "web": 600, "grpc-web": 400, "rest": 300, "console": 300, "webhooks": 200, "raw": 200}  # fmt: skip

READERS = readers()
# Inputs that once crashed their reader, or took it time with the square of their length.
FOUND = {
    "an action with many words": ("Go templates", b"{{ x" + b" d" * 200_000 + b" }}"),
    "a template with many lines": ("Go templates", b"{{ 1 }}\n" * 40_000),
    "binary data that is not ASCII": ("manifests", "a: !!binary \u00e1".encode()),
    "a certificate that is not ASCII": (
        "kubeconfigs",
        b"""\
contexts: [{name: dev, context: {cluster: c, user: u}}]
current-context: dev
clusters: [{name: c, cluster: {server: "https://c", certificate-authority-data: "\xc3\xa1"}}]
users: [{name: u, user: {}}]
""",
    ),
    "a brace in a list": ("HCLField replacements", b"$.a.b\na { list = [1 } ] }"),
    "a block with many labels": ("HCLField replacements", b"$.a.b\n" + b"a " * 5_000 + b"{ }"),
    "credentials nested too deeply": ("registry documents", b'{"auths": ' * 100_000),
    # The check of the fuzzer, and not the reader, took this for a script.
    "a web link with a scheme inside": ("Markdown", b"[a](https://xjavascript:alert(1)/y)"),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_mutated_input_is_read_or_refused(reader: Reader) -> None:
    numbers = range(FEWER_INPUTS.get(reader.name, READER_INPUTS))
    found = [try_input(reader, SEED, number) for number in numbers]
    assert not any(found), "\n".join(str(finding) for finding in found if finding)


@pytest.mark.parametrize(("name", "content"), FOUND.values(), ids=FOUND)
def test_what_was_found_before_is_read_or_refused(name: str, content: bytes) -> None:
    reader = READERS[name]
    with cpu_limit(CPU_SECONDS), suppress(PipecdError, *reader.refusals):
        reader.read(content)


@pytest.mark.parametrize(
    "html",
    [
        "<a href='javascript:alert(1)'>a</a>",
        "<a href='JavaScript:alert(1)'>a</a>",
        "<a href='&#106;avascript:alert(1)'>a</a>",
        "<a href='data:text/html,x'>a</a>",
        "<p onclick='alert(1)'>a</p>",
        "<script>alert(1)</script>",
        "<img src='https://x'>",
    ],
)
def test_the_fuzzer_finds_html_that_runs(html: str) -> None:
    with pytest.raises(AssertionError):
        check_html(html)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_the_samples_themselves_are_read(reader: Reader) -> None:
    assert reader.samples
    for sample in reader.samples:
        reader.read(sample)


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    async with open_plane(tmp_path) as plane:
        yield plane


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=ENDPOINTS)
async def test_fuzzed_calls_cause_no_internal_error(endpoint: Endpoint, plane: Plane) -> None:
    numbers = range(CALLS[endpoint.name])
    findings, answers = await fuzz_endpoint(endpoint, plane, SEED, numbers, lambda _: None)
    assert not findings, "\n".join(str(finding) for finding in findings[:5])
    # Otherwise all calls failed in authentication.
    assert answers["OK"] > len(numbers) // 20, answers
