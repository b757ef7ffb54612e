# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of a repository take linear time, and so do those that its text is read with.

On an engine that backtracks each of these rows runs longer than anybody waits.
"""

from typing import NamedTuple

import httpx2
import pytest

from pipecd.config.application import OnCommitSpec
from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_application
from pipecd.controlplane.console import first_error
from pipecd.controlplane.console.ansi import visible_text
from pipecd.controlplane.console.diff_view import DiffView, drift_view, preview_view
from pipecd.controlplane.console.first_error import SEARCHED_LINES
from pipecd.controlplane.console.markdown import description_html
from pipecd.controlplane.datastore.log_file import StoredLog
from pipecd.model.errors import UserMistake
from pipecd.model.regex import Regex, RegexSyntaxError
from pipecd.piped.eventwatcher.replacement import FieldFormat, Replacement, apply_replacement
from pipecd.piped.plan.paths import path_patterns
from pipecd.piped.plan.reason import CommitFacts, on_commit
from pipecd.piped.plan.strategy import StrategyFacts, strategy_by_rule
from pipecd.program.workers import WorkerPool
from pipecd.proto.model.application_pb2 import OUT_OF_SYNC, Application
from pipecd.proto.model.logblock_pb2 import LogBlock
from servers.control_plane import StartControlPlane
from servers.tenants import REPOSITORY, application_draft

AAA = "a" * 60
SOFT = "ab" * 40


class Attack(NamedTuple):
    """A pattern, a text on which backtracking never ends, and whether it matches."""

    pattern: str
    text: str
    matches: bool = False


ATTACKS_ON_PATHS: dict[str, Attack] = {
    "a repetition within a repetition": Attack("sec/(a+)+b", f"sec/{AAA}"),
    "alternatives that overlap": Attack("sec/(a|a)*b", f"sec/{AAA}"),
    "alternatives of different lengths": Attack("sec/(a|aa)+b", f"sec/{AAA}"),
    "a class within a repetition": Attack("sec/([a-z]+)+[0-9]", f"sec/{AAA}"),
    "an optional part within a repetition": Attack("sec/(a?b?)+c", f"sec/{SOFT}"),
    "eight double stars": Attack("**/" * 8 + "x", "a/" * 200 + "y"),
    "thirty double stars": Attack("**/" * 30 + "x", "a/" * 60 + "y"),
    "many stars in an element": Attack("*a" * 25 + "b", AAA * 4),
    "a counted repetition of a repetition": Attack("sec/(a+){25}b", f"sec/{AAA}"),
    "nested groups": Attack("sec/(((a+)+)+)+b", f"sec/{AAA}"),
    "a repetition that ends well": Attack("sec/(a+)+", f"sec/{AAA}", matches=True),
    "an exclusion": Attack("!sec/(a+)+b", f"sec/{AAA}"),
}


@pytest.mark.parametrize("attack", ATTACKS_ON_PATHS.values(), ids=ATTACKS_ON_PATHS)
def test_paths_of_a_trigger_are_matched_in_linear_time(attack: Attack) -> None:
    assert path_patterns([attack.pattern]).match(attack.text) is attack.matches
    facts = CommitFacts("web", "1" * 40, "2" * 40, (attack.text,))
    assert on_commit(OnCommitSpec(paths=(attack.pattern,)), facts).deploy is attack.matches
    assert not on_commit(OnCommitSpec(ignores=(attack.pattern,)), facts).deploy


ATTACKS_ON_COMMITS: dict[str, Attack] = {
    "a repetition within a repetition": Attack("^(a+)+$", f"{AAA}!"),
    "words": Attack(r"^(\w+\s?)*:$", "fix the bug in the long subject of this commit " * 3 + "!"),
    "anything within a repetition": Attack("^(.*)*x", AAA),
    "digits": Attack(r"^(\d+)*-release", "1" * 60),
    "a match": Attack("^(a+)+$", AAA, matches=True),
}


@pytest.mark.parametrize("attack", ATTACKS_ON_COMMITS.values(), ids=ATTACKS_ON_COMMITS)
def test_subjects_of_commits_are_matched_in_linear_time(attack: Attack) -> None:
    choice = strategy_by_rule(
        StrategyFacts(
            has_pipeline=True,
            pipeline_pattern=attack.pattern,
            commit_message=attack.text,
            is_deployed_before=True,
        )
    )
    assert (choice is not None) is attack.matches


ATTACKS_ON_FILES: dict[str, Attack] = {
    "a repetition within a repetition": Attack("tag: (a+)+b", f"tag: {AAA}\n" * 20),
    "lazy repetitions": Attack("tag: (.*?,)*?(x)", f"tag: {'a,' * 60}\n"),
    "a match": Attack("tag: (a+)+", f"tag: {AAA}", matches=True),
}


@pytest.mark.parametrize("attack", ATTACKS_ON_FILES.values(), ids=ATTACKS_ON_FILES)
async def test_files_that_events_change_are_searched_in_linear_time(
    attack: Attack, workers: WorkerPool
) -> None:
    replacement = Replacement("f", FieldFormat.REGEX, attack.pattern)
    edit = apply_replacement(attack.text.encode(), replacement, "new", workers=workers)
    if attack.matches:
        assert await edit == b"tag: new"
    else:
        with pytest.raises(UserMistake, match="doesn't match"):
            await edit


ATTACKS_BY_SIZE: dict[str, str] = {
    "repetitions of repetitions": "((a{1000}){1000}){1000}",
    "a repetition of a large class": r"(\pL{1000}){100}",
    "thousands of alternatives": "|".join(str(n) for n in range(20_000)),
    "a hundred thousand groups": "(" * 100_000 + ")" * 100_000,
    "a repetition without end": "(a{1,1000}){1,1000}",
}


@pytest.mark.parametrize("pattern", ATTACKS_BY_SIZE.values(), ids=ATTACKS_BY_SIZE)
def test_an_expression_that_fills_the_memory_is_refused(pattern: str) -> None:
    with pytest.raises(RegexSyntaxError):
        Regex(pattern)
    with pytest.raises(UserMistake, match="syntax error in pattern"):
        path_patterns([pattern])


LONG = 300_000
FIELD = '# 1. name="web", kind="Service", namespace="", apiVersion="v1"\n'

ATTACKS_BY_DIFFS: dict[str, str] = {
    "equals signs": f"{FIELD}~ {'=' * LONG}",
    "words and equals signs": f"{FIELD}~ {'a =' * LONG}",
    "arrows": f"{FIELD}~ a = {' ->' * LONG}",
    "spaces": f"{FIELD}~ {' ' * LONG}",
    "lines that may begin a difference": "  a\n" * LONG,
    "lines that may begin a difference, and a heading": "  a\n" * 4900 + FIELD,
    "long lines that may begin a difference": ("  " + "# a will be" * 20 + "\n") * 4900,
    "modules": f"  # {'module.a[' * LONG} will be created",
    "modules without an end": f"  # {'module.' * LONG} will be created",
    "a verb many times": f"  # {'a has ' * LONG}",
    "spaces before a comment": f"{' ' * LONG}# a",
    "quotes": '# 1. name="' * LONG,
    "parentheses": "... (" * LONG,
    "plans": f"Plan: {'.' * LONG}a",
    "targets": f"{'a:' * LONG} Diff between",
    "signs": "\n".join("-+~"[n % 3] + " a = b -> c" for n in range(LONG)),
    "headings": FIELD * 5000,
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ATTACKS_BY_DIFFS.values(), ids=ATTACKS_BY_DIFFS)
def test_the_differences_of_an_application_are_read_in_linear_time(text: str) -> None:
    for view in (drift_view(text), preview_view(text)):
        assert longest_line(view) <= 2_010
        assert count_lines(view) <= 5_000


def longest_line(view: DiffView) -> int:
    pairs = [pair for s in view.sections for block in s.blocks for pair in block.pairs]
    lines = [side.text for pair in pairs for side in (pair.old, pair.new) if side is not None]
    return max(map(len, [*lines, *view.findings]), default=0)


def count_lines(view: DiffView) -> int:
    blocks = [block for section in view.sections for block in section.blocks]
    return sum(len(block.lines) for block in blocks) + len(view.findings)


ATTACKS_BY_DESCRIPTIONS: dict[str, str] = {
    "brackets": "[" * LONG,
    "brackets and parentheses": "[a](" * LONG,
    "stars": "*a " * LONG,
    "underscores": "_" * LONG + "a",
    "backticks": "".join("`" * n + "a" for n in range(700)),
    "quotes within quotes": ">" * LONG + "a",
    "lists within lists": "".join(" " * 2 * n + "- a\n" for n in range(500)),
    "a table": "|a" * 5_000 + "\n" + "|-" * 5_000 + "\n" + ("|b" * 5_000 + "\n") * 20,
    "links by reference": "".join(f"[{n}]: x\n" for n in range(5_000)) + "[1]" * 5_000,
    "entities": "&#" * LONG,
    "addresses": "<http://" * LONG,
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ATTACKS_BY_DESCRIPTIONS.values(), ids=ATTACKS_BY_DESCRIPTIONS)
def test_a_description_is_shown_in_a_limited_time(text: str) -> None:
    assert len(description_html(text)) < 1_000_000


def test_a_configuration_says_which_matcher_is_no_expression() -> None:
    text = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: web
  commitMatcher: {pipeline: "(?=look)ahead", quickSync: "^fix:"}
"""
    config = read_application(text, file="app.pipecd.yaml", catalog=load_catalog())
    assert [w.path for w in config.warnings] == ["spec.commitMatcher.pipeline"]


def test_ordinary_patterns_match() -> None:
    patterns = path_patterns(["web/**/*.yaml", "lib/[a-c]?.go", "!web/test/**"])
    matching = ("web/a.yaml", "web/x/y/a.yaml", "lib/b1.go")
    assert all(patterns.match(path) for path in matching)
    assert not any(patterns.match(path) for path in ("web/test/a.yaml", "lib/d1.go", "a.yaml"))


# Lines that look like an error and that a terminal would not show, which takes long to find out.
ATTACKS_BY_LOG_LINES: dict[str, str] = {
    "an error that is erased many times": "error: a" + "\x1b[K" * 600 + "\r\x1b[K",
    "an error between colours": "error: a" + "\x1b[38;2;1;2;3m" * 130 + "\r\x1b[K",
    "an error between styles": "error: a" + "\x1b[1m\x1b[m" * 240 + "\r\x1b[K",
    "an error that is written over": "Error: a" + "\r\x1b[K" * 390,
}


@pytest.mark.parametrize("line", ATTACKS_BY_LOG_LINES.values(), ids=ATTACKS_BY_LOG_LINES)
def test_only_some_lines_of_a_log_are_rendered_for_its_first_error(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[int] = []

    def counted(text: str) -> str:
        rendered.append(len(text))
        return visible_text(text)

    monkeypatch.setattr(first_error, "visible_text", counted)
    blocks = tuple(LogBlock(index=n, log=line, created_at=1) for n in range(SEARCHED_LINES))
    found = first_error.first_error(StoredLog((), blocks, completed=True))
    # Lines after the limit are taken as they were sent.
    assert found is not None
    assert sum(rendered) < 300_000


ATTACKS_ON_A_PAGE = {"one below the other": "", "side by side": "?diff=split"}


@pytest.mark.parametrize("layout", ATTACKS_ON_A_PAGE.values(), ids=ATTACKS_ON_A_PAGE)
async def test_the_differences_of_all_applications_share_the_lines_of_their_page(
    layout: str, start_plane: StartControlPlane
) -> None:
    lines = "".join(f"-   key{n}: 1\n+   key{n}: 2\n" for n in range(5000))

    def differ(application: Application) -> None:
        application.sync_state.status = OUT_OF_SYNC
        application.sync_state.timestamp = 1
        application.sync_state.reason = FIELD + lines

    async with start_plane() as plane:
        piped = await plane.register_piped()
        await piped.add_repository(REPOSITORY.id, REPOSITORY.remote)
        for n in range(10):
            draft = application_draft(f"web-{n}", piped.id)
            id_ = await plane.cases.applications.add(draft, by=plane.admin)
            await plane.running.stores.applications.update(id_, differ)
        cookies = {"token": plane.cases.sessions.issue(plane.admin)}
        async with httpx2.AsyncClient(
            base_url=f"http://{plane.address}", cookies=cookies, timeout=60
        ) as browser:
            page = (await browser.get(f"/applications/drift{layout}")).text
    assert page.count('data-testid="drifted"') == 10
    assert 5_000 < page.count("key") < 11_000
