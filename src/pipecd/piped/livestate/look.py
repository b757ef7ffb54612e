# SPDX-License-Identifier: Apache-2.0
"""One look at an application: every plugin of it is asked what runs and how it compares."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pipecd.model.errors import PipecdError, Unavailable, Unsupported, UserMistake
from pipecd.piped.livestate.ground import Ground, Grounds
from pipecd.piped.livestate.merge import merged
from pipecd.piped.plan.stages import TargetsByPlugin, deploy_targets
from pipecd.piped.pluginhost.plugin import Plugin
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.piped.reporting.sync_states import SyncState
from pipecd.piped.source.sources import Source
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.livestate_pb2 import ResourceState
from pipecd.proto.plugin.livestate_pb2 import GetLivestateRequest, GetLivestateResponse
from pipecd.secrets.masking import Masking

# A platform is asked about so many applications at a time.
_AT_ONCE = 8
# Nobody reads more, and every list of applications carries it.
_LONGEST_REASON = 64 * 1024
# A plugin may have to plan before it can compare.
PATIENCE = 600.0


@dataclass(frozen=True)
class Sight:
    """What a look found; `resources` is None when no plugin tells what runs.

    `is_told` means that the plugins tell of each change by themselves.
    """

    verdict: SyncState
    resources: tuple[ResourceState, ...] | None = None
    is_told: bool = True


@dataclass(frozen=True)
class _Question:
    """What one plugin is asked: the deploy targets are its own."""

    plugin: Plugin
    targets: tuple[str, ...]


class Looking:
    """Asks the plugins; what one platform leaves unanswered holds up nothing but itself."""

    def __init__(
        self,
        grounds: Grounds,
        plugins: PluginRegistry,
        targets: TargetsByPlugin,
        *,
        patience: float = PATIENCE,
    ) -> None:
        self._grounds, self._plugins, self._targets = grounds, plugins, targets
        self._patience = patience
        self._lanes: defaultdict[tuple[_Question, ...], asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_AT_ONCE)
        )
        # The names of the plugins that do not tell what runs.
        self._blind: set[str] = set()

    async def look(self, application: Application, ground: Ground) -> Sight:
        """What runs for an application now; what keeps a plugin from telling is raised."""
        questions = self._questions(application, ground)
        if not questions:
            return Sight(merged(()))
        # Whoever waits for a platform needs no working copy yet.
        async with self._lanes[questions], self._grounds.copy(application, ground) as source:
            masking = Masking(source.secrets)
            try:
                asked = [await self._ask(each, application, source) for each in questions]
            except PipecdError as e:
                raise _masked(e, masking) from None
        answers = {q.plugin: a for q, a in zip(questions, asked, strict=True) if a is not None}
        if not answers:
            return Sight(merged(()))
        return Sight(
            merged([_verdict(answer, masking) for answer in answers.values()]),
            tuple(each for a in answers.values() for each in _resources(a, masking)),
            all(plugin.tells_changes for plugin in answers),
        )

    def _questions(self, application: Application, ground: Ground) -> tuple[_Question, ...]:
        spec = ground.config.spec
        targets = deploy_targets(application, spec.plugins, self._targets)
        found = self._plugins.of_application(spec, targets=targets.keys())
        return tuple(
            _Question(plugin, targets.get(plugin.name, ()))
            for plugin in found
            if plugin.name not in self._blind
        )

    async def _ask(
        self, question: _Question, application: Application, source: Source
    ) -> GetLivestateResponse | None:
        """What a plugin says, or None from one that does not tell what runs."""
        plugin = question.plugin
        request = GetLivestateRequest(
            piped_id=application.piped_id,
            application_id=application.id,
            application_name=application.name,
            deploy_source=source.to_proto(),
            deploy_targets=question.targets,
        )
        try:
            async with asyncio.timeout(self._patience):
                return await plugin.GetLivestate(request)
        except Unsupported:
            self._blind.add(plugin.name)
            return None
        except TimeoutError as e:
            told = f"plugin {plugin.name} did not tell what runs within {self._patience:g}s"
            raise Unavailable(told) from e


def _masked(error: PipecdError, masking: Masking) -> PipecdError:
    """The same failure in a text without secrets; one that has none stays what it is."""
    told = masking.hide(str(error))
    if told == str(error):
        return error
    return UserMistake(told) if isinstance(error, UserMistake) else Unavailable(told)


def _verdict(answer: GetLivestateResponse, masking: Masking) -> SyncState:
    verdict = SyncState.of(answer.sync_state)
    reason = masking.hide(verdict.reason)
    if len(reason) > _LONGEST_REASON:
        reason = f"{reason[:_LONGEST_REASON]}\n... (the rest is left out)"
    return SyncState(verdict.status, masking.hide(verdict.short_reason), reason)


def _resources(answer: GetLivestateResponse, masking: Masking) -> Sequence[ResourceState]:
    resources = answer.application_live_state.resources
    for each in resources:
        each.health_description = masking.hide(each.health_description)
        for key, value in list(each.resource_metadata.items()):
            each.resource_metadata[key] = masking.hide(value)
    return resources
