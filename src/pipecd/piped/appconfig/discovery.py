# SPDX-License-Identifier: Apache-2.0
"""Which files of a repository are applications, and what differs from what is registered."""

import posixpath
from collections.abc import Iterable, Mapping

from pipecd.config.read import ApplicationConfig
from pipecd.model.errors import PipecdError
from pipecd.proto.model import common_pb2
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationInfo


def is_sendable(path: str) -> bool:
    """Whether a path can travel in a message, which holds text only."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def reported_directory(path: str) -> str:
    """The directory of a file as the wire accepts it: two characters or more."""
    directory = posixpath.dirname(path)
    return f"./{directory}" if len(directory) < 2 else directory


def has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether every wanted label is there."""
    return wanted.items() <= labels.items()


def mistake_in(read: ApplicationConfig | PipecdError) -> str:
    """Why a file cannot be offered or kept in step, with every mistake, or nothing."""
    if isinstance(read, PipecdError):
        return str(read)
    return "" if read.spec.name else "spec.name must be set, else nobody can tell what this is"


def changed_info(application: Application, config: ApplicationConfig) -> ApplicationInfo | None:
    """What the control plane should know about an application that changed in Git."""
    spec = config.spec
    if not spec.name:
        return None
    same = (
        spec.name == application.name
        and spec.description == application.description
        and dict(spec.labels) == dict(application.labels)
    )
    if same:
        return None
    git_path = application.git_path
    return ApplicationInfo(
        id=application.id,
        name=spec.name,
        kind=_kind(config),
        labels=spec.labels,
        repo_id=git_path.repo.id,
        path=git_path.path,
        config_filename=git_path.config_filename,
        piped_id=application.piped_id,
        description=spec.description,
    )


def found_info(
    path: str, config: ApplicationConfig, *, repository_id: str, piped_id: str
) -> ApplicationInfo | None:
    """What the control plane should know about an application that nobody registered."""
    spec = config.spec
    if not spec.name:
        return None
    return ApplicationInfo(
        name=spec.name,
        kind=_kind(config),
        labels=spec.labels,
        repo_id=repository_id,
        path=reported_directory(path),
        config_filename=posixpath.basename(path),
        piped_id=piped_id,
        description=spec.description,
    )


def _kind(config: ApplicationConfig) -> "common_pb2.ApplicationKind.ValueType":
    # An application of plugins has no kind; zero is what upstream's piped sends then.
    return common_pb2.ApplicationKind.ValueType(int(config.application_kind or 0))


def unregistered(paths: Iterable[str], registered: Iterable[str]) -> list[str]:
    """The paths that no registered application has."""
    known = frozenset(registered)
    return [path for path in paths if path not in known]
