# SPDX-License-Identifier: Apache-2.0
"""Reads the live state of an application, and its drift from Git, from the plugins."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pipecd.model.application import SyncStatus
from pipecd.model.errors import PipecdError, Unavailable, Unsupported, UserMistake
from pipecd.piped.livestate.desired_state import DesiredState, DesiredStates
from pipecd.piped.plan.stages import TargetsByPlugin, deploy_targets
from pipecd.piped.pluginhost.plugin import Plugin
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.piped.reporting.sync_states import SyncState
from pipecd.piped.source.sources import Source
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.livestate_pb2 import ResourceState
from pipecd.proto.plugin.livestate_pb2 import GetLivestateRequest, GetLivestateResponse
from pipecd.secrets.masking import Masking

_MAX_CONCURRENT_PER_TARGET = 8
# Every list of applications carries the reason.
_MAX_REASON_LENGTH = 64 * 1024
# A plugin may have to plan before it can compare.
PLUGIN_TIMEOUT = 600.0

# The first status that any plugin reports counts.
_STATUS_ORDER = (
    SyncStatus.DEPLOYING,
    SyncStatus.INVALID_CONFIG,
    SyncStatus.OUT_OF_SYNC,
    SyncStatus.UNKNOWN,
    SyncStatus.SYNCED,
)
_WITHOUT_REASON = (SyncStatus.DEPLOYING, SyncStatus.SYNCED)


@dataclass(frozen=True)
class LiveStateResult:
    """The live state of an application; `resources` is None if no plugin supports live states.

    `is_pushed` means that the plugins push each change by themselves.
    """

    sync_state: SyncState
    resources: tuple[ResourceState, ...] | None = None
    is_pushed: bool = True


@dataclass(frozen=True)
class _PluginTargets:
    """A plugin and the deploy targets that it reads."""

    plugin: Plugin
    targets: tuple[str, ...]


class LiveStateReader:
    """Reads live states from plugins; a platform that hangs delays only its own applications."""

    def __init__(
        self,
        desired_states: DesiredStates,
        plugins: PluginRegistry,
        targets: TargetsByPlugin,
        *,
        timeout: float = PLUGIN_TIMEOUT,
    ) -> None:
        self._desired_states, self._plugins, self._targets = desired_states, plugins, targets
        self._timeout = timeout
        self._limits: defaultdict[tuple[_PluginTargets, ...], asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_MAX_CONCURRENT_PER_TARGET)
        )
        self._unsupported_plugins: set[str] = set()

    async def read(self, application: Application, desired: DesiredState) -> LiveStateResult:
        """The live state of an application now; raises if a plugin cannot read it."""
        spec = desired.config.spec
        targets = deploy_targets(application, spec.plugins, self._targets)
        plugins = tuple(
            _PluginTargets(plugin, targets.get(plugin.name, ()))
            for plugin in self._plugins.of_application(spec, targets=targets)
            if plugin.name not in self._unsupported_plugins
        )
        if not plugins:
            return LiveStateResult(merge_sync_states(()))
        # The limit comes first, because waiting for a platform needs no working copy.
        async with (
            self._limits[plugins],
            self._desired_states.working_copy(application, desired) as source,
        ):
            masking = Masking(source.secrets)
            try:
                responses = [await self._get(each, application, source) for each in plugins]
            except PipecdError as e:
                masked = masking.hide(str(e))
                if masked == str(e):
                    raise
                is_mistake = isinstance(e, UserMistake)
                raise (UserMistake if is_mistake else Unavailable)(masked) from None
        states: list[SyncState] = []
        resources: list[ResourceState] = []
        is_pushed = True
        for each, response in zip(plugins, responses, strict=True):
            if response is not None:
                _mask(response, masking)
                states.append(SyncState.of(response.sync_state))
                resources += response.application_live_state.resources
                is_pushed &= each.plugin.tells_changes
        if not states:
            return LiveStateResult(merge_sync_states(()))
        return LiveStateResult(merge_sync_states(states), tuple(resources), is_pushed)

    async def _get(
        self, queried: _PluginTargets, application: Application, source: Source
    ) -> GetLivestateResponse | None:
        """The response of a plugin, or None if it does not support live states."""
        plugin = queried.plugin
        request = GetLivestateRequest(
            piped_id=application.piped_id,
            application_id=application.id,
            application_name=application.name,
            deploy_source=source.to_proto(),
            deploy_targets=queried.targets,
        )
        try:
            async with asyncio.timeout(self._timeout):
                return await plugin.GetLivestate(request)
        except Unsupported:
            self._unsupported_plugins.add(plugin.name)
            return None
        except TimeoutError as e:
            message = f"plugin {plugin.name} did not return the live state within"
            raise Unavailable(f"{message} {self._timeout:g}s") from e


def merge_sync_states(states: Sequence[SyncState]) -> SyncState:
    """The worst status of several plugins, with the reasons of all; UNKNOWN for no plugin."""
    status = min(
        (each.status for each in states), key=_STATUS_ORDER.index, default=SyncStatus.UNKNOWN
    )
    if status in _WITHOUT_REASON:
        return SyncState(status)
    return SyncState(
        status,
        "\n".join(each.short_reason for each in states if each.short_reason),
        "\n".join(each.reason for each in states if each.reason),
    )


def _mask(response: GetLivestateResponse, masking: Masking) -> None:
    """Masks secrets in a response, and truncates a reason that is too long."""
    state = response.sync_state
    state.short_reason, state.reason = masking.hide(state.short_reason), masking.hide(state.reason)
    if len(state.reason) > _MAX_REASON_LENGTH:
        state.reason = f"{state.reason[:_MAX_REASON_LENGTH]}\n... (the rest is left out)"
    for resource in response.application_live_state.resources:
        resource.health_description = masking.hide(resource.health_description)
        for key, value in list(resource.resource_metadata.items()):
            resource.resource_metadata[key] = masking.hide(value)
