# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments that Kustomize passes to git and helm.

A kustomization names refs, remotes, releases and charts, also one in a remote base that piped never
sees. Kustomize passes them on without `--`, so `ref=--upload-pack=…` or `releaseName:
--post-renderer=…` would start a program. In PATH this script stands before the real programs. It
runs on its own, without the package, as each build starts it several times.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

WORKING_COPY_VARIABLE = "PIPECD_WORKING_COPY"
"""Names the working copy that is rendered: charts in it may link to other files of it."""

# The commands of git to which Kustomize passes refs and remotes.
_GIT_COMMANDS = frozenset({"init", "clone", "remote", "fetch", "checkout", "reset"})
_GIT_OPTIONS = frozenset({"-q", "--quiet", "--bare", "--hard", "--depth=1"})
_HELM_VALUES = frozenset({"-f", "--values"})
_HELM_OPTIONS_WITH_VALUES = _HELM_VALUES | frozenset(
    {
        "--namespace",
        "--name-template",
        "--api-versions",
        "--kube-version",
        "--repo",
        "--untardir",
        "--destination",
        "--version",
    }
)
_HELM_OPTIONS = frozenset(
    {
        "-c",
        "--client",
        "--short",
        "--debug",
        "--devel",
        "--generate-name",
        "--include-crds",
        "--no-hooks",
        "--skip-tests",
        "--untar",
    }
)


def refused_by_git(arguments: Sequence[str]) -> str:
    """Returns why git must not run with these arguments, or nothing."""
    command, *rest = arguments or [""]
    if command.startswith("-"):
        return f"the option {command} is not allowed"
    if command in _GIT_COMMANDS:
        for argument in rest:
            if argument.startswith("-") and argument not in _GIT_OPTIONS:
                return f"{argument} is not a ref or a remote"
    return ""


def refused_by_helm(arguments: Sequence[str], roots: Sequence[Path]) -> str:
    """Returns why helm must not run with these arguments, or nothing.

    `roots` are the directories whose files belong to the kustomization.
    """
    is_template = arguments[:1] == ["template"]
    rest = iter(arguments)
    for argument in rest:
        if argument in _HELM_OPTIONS_WITH_VALUES:
            value = Path(next(rest, ""))
            if argument in _HELM_VALUES and _root_of(value, roots) is None:
                return f"the values file {value.name} lies outside of the repository"
        elif argument.startswith("-"):
            if argument not in _HELM_OPTIONS:
                return f"{argument} is not the name of a release or a chart"
        elif is_template and (reason := _refused_chart(argument, roots)):
            return reason
    return ""


def _refused_chart(path: str, roots: Sequence[Path]) -> str:
    chart, root = Path(path), _root_of(Path(path), roots)
    if not chart.is_dir():
        return ""
    if root is None:
        return f"the chart {chart.name} lies outside of the repository"
    for each in _walk(chart):
        if each.is_symlink() and not each.resolve().is_relative_to(root):
            return f"{each.relative_to(chart)} of the chart {chart.name} leads outside of it"
    return ""


def _root_of(path: Path, roots: Sequence[Path]) -> Path | None:
    """Returns the root that contains a path; Kustomize clones remote bases below TMPDIR."""
    resolved, temporary = path.resolve(), Path(tempfile.gettempdir()).resolve()
    if resolved.is_relative_to(temporary):
        name = resolved.relative_to(temporary).parts[:1]
        if name and name[0].startswith("kustomize-"):
            return temporary / name[0]
    return next((root for root in roots if resolved.is_relative_to(root)), None)


def _walk(directory: Path) -> Iterator[Path]:
    for parent, directories, files in os.walk(directory):
        yield from (Path(parent, name) for name in (*directories, *files))


def main() -> None:
    """Runs `program` with the arguments if they are harmless."""
    name, program, *arguments = sys.argv[1:]
    working_copy = os.environ.get(WORKING_COPY_VARIABLE)
    roots = [Path(working_copy).resolve()] if working_copy else []
    reason = refused_by_git(arguments) if name == "git" else refused_by_helm(arguments, roots)
    if reason:
        sys.stderr.write(f"{name}: {reason}\n")
        raise SystemExit(1)
    os.execv(program, [program, *arguments])  # noqa: S606


if __name__ == "__main__":
    main()
