# SPDX-License-Identifier: Apache-2.0
"""Whether a head is a reason to deploy an application.

Pushes and plan previews are judged by the same code, so that they cannot disagree.
"""

from dataclasses import dataclass, field

from pipecd.config.application.spec import ApplicationSpec
from pipecd.config.read import ApplicationConfig
from pipecd.git.mirror import Mirror
from pipecd.model.application import ApplicationKind
from pipecd.model.errors import NotFound, PipecdError
from pipecd.piped.plan import reason
from pipecd.piped.planning.baseline import Baselines
from pipecd.piped.source.configs import Read
from pipecd.proto.model.application_pb2 import Application


@dataclass
class Judgement:
    """Judges one head of a repository for many applications."""

    baselines: Baselines
    mirror: Mirror
    head: str
    _changed: dict[str, tuple[str, ...] | None] = field(
        default_factory=dict[str, "tuple[str, ...] | None"]
    )

    async def on_commit(self, application: Application, spec: ApplicationSpec) -> reason.Decision:
        """Whether what was committed since the last look concerns an application."""
        rule, last = spec.trigger.on_commit, self.baselines.of(application).commit
        changed: tuple[str, ...] | None = ()
        if reason.needs_changes(rule, last=last, head=self.head):
            changed = await self._changed_since(last)
        facts = reason.CommitFacts(application.git_path.path, last, self.head, changed)
        return reason.on_commit(rule, facts)

    async def _changed_since(self, last: str) -> tuple[str, ...] | None:
        """The paths that differ between a commit and the head; many applications share it."""
        if last not in self._changed:
            try:
                await self.mirror.clone.ensure_commit(last)
                changed = await self.mirror.objects.changed_files(last, self.head)
            except NotFound:
                changed = None
            self._changed[last] = changed
        return self._changed[last]


def mistake_in(application: Application, read: Read) -> str:
    """What keeps a configuration from being deployed at all; empty when nothing does."""
    return str(read) if isinstance(read, PipecdError) else _kind_mistake(application, read)


def _kind_mistake(application: Application, config: ApplicationConfig) -> str:
    try:
        registered = ApplicationKind(application.kind)
    except ValueError:
        return ""
    has_provider = bool(application.platform_provider or application.cloud_provider)
    return reason.kind_mistake(config.application_kind, registered, has_provider=has_provider)
