# SPDX-License-Identifier: Apache-2.0
"""Events share a commit if their messages and trailers allow it."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.piped.eventwatcher.definitions import EventDefinition
from pipecd.piped.eventwatcher.edits import Edit, EditBatch, commit_message
from pipecd.piped.eventwatcher.replacement import FieldFormat, Replacement
from pipecd.program.workers import WorkerPool
from pipecd.proto.model.event_pb2 import Event
from servers.origin import Origin


def task(
    name: str,
    file: str,
    *,
    template: str = "",
    commit: str = "",
    contexts: Mapping[str, str] | None = None,
) -> Edit:
    event = Event(
        id=name, name=name, data="v2", trigger_commit_hash=commit, contexts=contexts or {}
    )
    replacement = Replacement(file, FieldFormat.YAML, "$.tag")
    definition = EventDefinition(
        origin="x", name=name, labels={}, replacements=(replacement,), message=template
    )
    return Edit(event, definition)


TRAILER = "Pipecd-Dev-Trace-Trigger-Commit-Hash"


@pytest.mark.parametrize(
    ("tasks", "commits"),
    [
        pytest.param(
            [task("x", "a"), task("y", "b")],
            [(["a", "b"], 'Replace values with "v2" set by Event "x"\n\nReplace values with "v2" set by Event "y"', {})],
            id="all in one",
        ),
        pytest.param(
            [task("x", "a", template="t"), task("y", "b", template="t")],
            [(["a", "b"], "t", {})],
            id="equal messages are written once",
        ),
        pytest.param(
            [task("x", "a", commit="1"), task("y", "b", commit="2"), task("z", "c", commit="1")],
            [
                (["a", "c"], 'Replace values with "v2" set by Event "x"\n\nReplace values with "v2" set by Event "z"', {TRAILER: "1"}),
                (["b"], 'Replace values with "v2" set by Event "y"', {TRAILER: "2"}),
            ],
            id="those of one cause together",
        ),
        pytest.param(
            [task("x", "a", template="{{.Value}}"), task("y", "b", template="{{.EventName}}")],
            [(["b"], "y", {}), (["a"], "v2", {})],
            id="templates apart",
        ),
        pytest.param(
            [task("x", "a", contexts={"A": "1"}), task("y", "b", contexts={"B": "2"}), task("z", "c", contexts={"A": "3"})],
            [
                (["a", "b"], 'Replace values with "v2" set by Event "x"\n\nReplace values with "v2" set by Event "y"', {"A": "1", "B": "2"}),
                (["c"], 'Replace values with "v2" set by Event "z"', {"A": "3"}),
            ],
            id="contexts that contradict each other apart",
        ),
        pytest.param(
            [task("x", "a", commit="1"), task("y", "a", commit="2")],
            [(["a"], 'Replace values with "v2" set by Event "x"', {TRAILER: "1"})],
            id="an edit that is done already is skipped",
        ),
    ],
)  # fmt: skip
async def test_commits(
    tasks: list[Edit],
    commits: list[tuple[list[str], str, dict[str, str]]],
    origin: Origin,
    tmp_path: Path,
    workers: WorkerPool,
) -> None:
    head = origin.commit(dict.fromkeys("abc", "tag: v1\n"))
    repository = Repository("site", origin.remote, "main")
    async with open_mirrors(
        [repository], directory=tmp_path / "m", credentials=GitCredentials()
    ) as all_:
        mirror = all_.of("site")
        await mirror.update()
        edits = EditBatch(mirror, tasks, workers, lambda _: None)
        drafts = await edits.commits_on(head)
    assert [(sorted(d.files), d.message, dict(d.trailers)) for d in drafts] == commits
    assert {content for d in drafts for content in d.files.values()} == {b"tag: v2\n"}
    assert sum(result.files for _, result in edits.results) == sum(len(c[0]) for c in commits)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        pytest.param(
            "", 'Replace values with "a \\"b\\"" set by Event "x"', id="upstream's message"
        ),
        pytest.param("bump {{ .EventName }} to {{ .Value }}", 'bump x to a "b"', id="a template"),
        pytest.param(" {{ .Value | upper }} \n", 'A "B"', id="functions, and no space around"),
        pytest.param("{{ .Nothing }} x", "{{ .Nothing }} x", id="a mistake is taken as it is"),
        pytest.param("{{ if }}", "{{ if }}", id="an invalid template is taken as it is"),
    ],
)
async def test_messages(template: str, text: str, workers: WorkerPool) -> None:
    message = await commit_message(Event(name="x", data='a "b"'), template, workers=workers)
    assert message.text == text
    assert bool(message.error) is (template == text)
