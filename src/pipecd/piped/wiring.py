# SPDX-License-Identifier: Apache-2.0
"""How each part of the agent is made from what the parts share."""

from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from pipecd.config.piped import EventWatcherRepoSpec, PlanPreviewSpec, git_password
from pipecd.piped.appconfig.reporter import AppConfigReporter
from pipecd.piped.cache.refresh import RefreshSchedule
from pipecd.piped.cache.wakeups import WakeupStream
from pipecd.piped.deploy.context import DeploymentContext
from pipecd.piped.deploy.deployer import Deployer
from pipecd.piped.eventwatcher.definitions import Definitions
from pipecd.piped.eventwatcher.inbox import Inbox
from pipecd.piped.eventwatcher.scribe import Scribe, Surroundings
from pipecd.piped.eventwatcher.watcher import EventWatcher
from pipecd.piped.foundation import PipedSettings, Shared
from pipecd.piped.livestate.announce import Recoveries
from pipecd.piped.livestate.ground import Grounds
from pipecd.piped.livestate.livestates import LiveStates
from pipecd.piped.livestate.look import Looking
from pipecd.piped.livestate.watcher import Tools as WatcherTools
from pipecd.piped.planpreview.builder import ApplicationPreviewer, PreviewBuilder
from pipecd.piped.planpreview.previewer import Previewer, PreviewMetrics
from pipecd.piped.pluginhost.host import PluginDownloads, PluginHost
from pipecd.piped.pluginhost.process import PluginTimeouts
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.piped.trigger.trigger import Trigger
from pipecd.proto.service.wakeups_pb2 import Wakeup

_DEFAULT_EVERY = 60.0


def trigger(shared: Shared) -> Trigger:
    return Trigger(
        api=shared.api,
        applications=shared.applications,
        deployments=shared.deployments,
        commands=shared.commands,
        heads=shared.heads,
        mirrors=shared.mirrors,
        configs=shared.configs,
        baselines=shared.baselines,
        notifier=shared.notifier,
        states=shared.states,
        interval=shared.settings.config.spec.sync_interval or _DEFAULT_EVERY,
    )


async def plugins(shared: Shared, opened: AsyncExitStack) -> PluginRegistry:
    """Starts the plugins, which end with `opened`."""
    settings = shared.settings
    host = PluginHost.start(
        settings.config.spec.plugins,
        callbacks=shared.callbacks,
        service_port=settings.plugin_service_port,
        downloads=PluginDownloads(settings.plugins_dir, redownload=settings.fetch_plugins_anew),
        timeouts=PluginTimeouts(grace=settings.grace),
    )
    return await opened.enter_async_context(host)


def targets(settings: PipedSettings) -> dict[str, tuple[str, ...]]:
    """The names of the deploy targets of each plugin."""
    return {
        plugin.name: tuple(target.name for target in plugin.deploy_targets)
        for plugin in settings.config.spec.plugins
    }


def deployer(shared: Shared, registry: PluginRegistry) -> Deployer:
    context = DeploymentContext(
        api=shared.api,
        deployments=shared.deployments,
        commands=shared.commands,
        sources=shared.sources,
        plugins=registry,
        targets=targets(shared.settings),
        callbacks=shared.callbacks,
        metadata=shared.metadata,
        notifier=shared.notifier,
        workspace=shared.settings.workspace,
        telemetry=shared.telemetry,
    )
    return Deployer(context=context, applications=shared.applications)


def livestates(shared: Shared, registry: PluginRegistry) -> LiveStates:
    """Those who look at what runs; plugins tell them of changes from now on."""
    directory = shared.settings.workspace / "livestate"
    grounds = Grounds(shared.mirrors, shared.configs, shared.sources, directory)
    made = LiveStates(
        applications=shared.applications,
        mirrors=shared.mirrors,
        tools=WatcherTools(
            api=shared.api,
            deployments=shared.deployments,
            heads=shared.heads,
            grounds=grounds,
            looking=Looking(grounds, registry, targets(shared.settings)),
            states=shared.states,
            recoveries=Recoveries(shared.notifier),
        ),
    )
    shared.callbacks.on_live_state_changed = made.changed
    return made


def previewer(shared: Shared, registry: PluginRegistry, counted: CollectorRegistry) -> Previewer:
    settings = shared.settings.config.spec.plan_preview
    return Previewer(
        commands=shared.commands,
        builder=PreviewBuilder(
            applications=shared.applications,
            heads=shared.heads,
            mirrors=shared.mirrors,
            configs=shared.configs,
            baselines=shared.baselines,
            previewer=ApplicationPreviewer(
                api=shared.api,
                sources=shared.sources,
                plugins=registry,
                masks=shared.callbacks.masks,
                targets=targets(shared.settings),
            ),
        ),
        workspace=shared.settings.workspace,
        workers=settings.worker_num or PlanPreviewSpec().worker_num,
        default_timeout=settings.command_handle_timeout or PlanPreviewSpec().command_handle_timeout,
        metrics=PreviewMetrics(counted),
    )


def reporter(shared: Shared) -> AppConfigReporter:
    spec = shared.settings.config.spec
    return AppConfigReporter(
        api=shared.api,
        applications=shared.applications,
        commands=shared.commands,
        heads=shared.heads,
        mirrors=shared.mirrors,
        configs=shared.configs,
        schedule=RefreshSchedule(spec.app_config_sync_interval or _DEFAULT_EVERY),
        piped_id=spec.piped_id,
        selector=spec.app_selector,
    )


def events(shared: Shared) -> EventWatcher:
    spec = shared.settings.config.spec
    overrides = {repository.repo_id: repository for repository in spec.event_watcher.git_repos}
    inbox = Inbox(shared.api, every=spec.event_watcher.check_interval or _DEFAULT_EVERY)
    around = Surroundings(
        inbox=inbox,
        heads=shared.heads,
        applications=shared.applications,
        token=git_password(spec.git),
    )
    scribes = [
        Scribe(
            mirror,
            Definitions(
                mirror,
                shared.configs,
                overrides.get(mirror.repository.id, EventWatcherRepoSpec()),
            ),
            around,
        )
        for mirror in shared.mirrors
    ]
    return EventWatcher(inbox, scribes)


def wakeups(shared: Shared, events: RefreshSchedule, *others: RefreshSchedule) -> WakeupStream:
    applications, deployments = shared.applications.schedule, shared.deployments.schedule
    commands = shared.commands.schedule
    return WakeupStream(
        shared.api,
        schedules={
            Wakeup.CONNECTED: (applications, deployments, commands, events, *others),
            Wakeup.APPLICATIONS: (applications,),
            Wakeup.DEPLOYMENTS: (deployments,),
            Wakeup.COMMANDS: (commands,),
            Wakeup.EVENTS: (events,),
        },
        heads=shared.heads,
    )
