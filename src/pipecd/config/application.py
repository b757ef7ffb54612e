# SPDX-License-Identifier: Apache-2.0
"""The kind Application: the generic fields of application files, equal in both generations."""

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from pipecd.config.catalog import Catalog
from pipecd.config.decode import Decoder, Level, entry_of, fields_of, unknown_word
from pipecd.config.report import Path
from pipecd.config.spec import Advice, Spec, refuse
from pipecd.config.units import Duration
from pipecd.config.yaml_tree import Entry, List, Map, Node, Scalar
from pipecd.model.application import ApplicationKind, name_problem
from pipecd.model.regex import Regex, RegexSyntaxError
from pipecd.proto.model.common_pb2 import ApplicationGitPath

DEFAULT_CONFIG_FILE = "app.pipecd.yaml"
"""The file name for new applications."""
LEGACY_CONFIG_FILE = ".pipe.yaml"
"""The file name of an application that was registered without one."""


def is_application_file(path: str) -> bool:
    """Report whether a file in a repository is an application file, by its name."""
    return path.endswith(".pipecd.yaml") or posixpath.basename(path) == LEGACY_CONFIG_FILE


def filename_of(registered: str) -> str:
    """Return the file name of a registered application."""
    return registered or LEGACY_CONFIG_FILE


def config_path(git_path: ApplicationGitPath, config_filename: str = "") -> str:
    """Return the path of an application's file from the root of its repository."""
    name = config_filename or filename_of(git_path.config_filename)
    return posixpath.normpath(posixpath.join(git_path.path, name))


class DriftDetectionSpec(Spec):
    """Fields to ignore, each written `apiVersion:kind:namespace:name#fieldPath`."""

    ignore_fields: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _names_fields(self) -> Self:
        what = 'must be in the form of "apiVersion:kind:namespace:name#fieldPath"'
        fields = enumerate(self.ignore_fields)
        refuse(self, *((text.count("#") != 1, ("ignoreFields", i), what) for i, text in fields))
        return self

    def ignored_by_resource(self) -> dict[str, tuple[str, ...]]:
        """Return the field paths to ignore by the key of their resource."""
        paths: dict[str, tuple[str, ...]] = {}
        for field in self.ignore_fields:
            resource, _, path = field.partition("#")
            paths[resource] = (*paths.get(resource, ()), path)
        return paths


class ChainApplicationSpec(Spec):
    """Selects the applications of the project that match every field that is set."""

    name: str = ""
    kind: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])

    @model_validator(mode="after")
    def _selects_something(self) -> Self:
        what = 'at least one of "name", "kind" or "labels" must be set to find applications'
        refuse(self, (not (self.name or self.kind or self.labels), "", what))
        return self

    def advice(self) -> Iterator[Advice]:
        """Yield a kind that the control plane refuses."""
        if self.kind and self.kind not in ApplicationKind.__members__:
            kinds = ", ".join(ApplicationKind.__members__)
            yield Advice(("kind",), f"no application has this kind, write one of {kinds}")


class ChainSpec(Spec):
    """The blocks of a deployment chain, in order."""

    applications: tuple[ChainApplicationSpec, ...] = ()

    @model_validator(mode="after")
    def _has_applications(self) -> Self:
        what = "must name at least one application that deploys after this one"
        refuse(self, (not self.applications, "applications", what))
        return self


class PostSyncSpec(Spec):
    """The actions after a successful deployment."""

    chain: ChainSpec | None = None


class EncryptionSpec(Spec):
    """Encrypted values, and the files in which they replace `.encryptedSecrets.NAME`."""

    encrypted_secrets: Mapping[str, str] = Field(default_factory=dict[str, str])
    decryption_targets: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        key = "encryptedSecrets"
        refuse(
            self,
            ("" in self.encrypted_secrets, key, "a name must not be empty"),
            *(
                (name and not value, (key, name), "the value must not be empty")
                for name, value in self.encrypted_secrets.items()
            ),
            (
                not self.decryption_targets,
                "decryptionTargets",
                "must not be empty, list the files that use the secrets",
            ),
        )
        return self


class AttachmentSpec(Spec):
    """Files by name, and the files in which their content replaces `.attachment.NAME`."""

    sources: Mapping[str, str] = Field(default_factory=dict[str, str])
    targets: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        refuse(
            self,
            ("" in self.sources, "sources", "a name must not be empty"),
            *(
                (name and not path, ("sources", name), "the file name must not be empty")
                for name, path in self.sources.items()
            ),
            (
                not self.targets,
                "targets",
                "must not be empty, list the files that use the attachments",
            ),
        )
        return self


ANY_EVENT = "*"
EVENTS = (
    "DEPLOYMENT_TRIGGERED",
    "DEPLOYMENT_PLANNED",
    "DEPLOYMENT_APPROVED",
    "DEPLOYMENT_ROLLING_BACK",
    "DEPLOYMENT_SUCCEEDED",
    "DEPLOYMENT_FAILED",
    "DEPLOYMENT_CANCELLED",
    "DEPLOYMENT_WAIT_APPROVAL",
    "DEPLOYMENT_TRIGGER_FAILED",
    "DEPLOYMENT_STARTED",
    "APPLICATION_SYNCED",
    "APPLICATION_OUT_OF_SYNC",
    "APPLICATION_HEALTHY",
    "PIPED_STARTED",
    "PIPED_STOPPED",
    "STAGE_STARTED",
    "STAGE_SKIPPED",
    "STAGE_SUCCEEDED",
    "STAGE_FAILED",
    "STAGE_CANCELLED",
)


def check_event(event: str) -> str:
    """Return `event` if it is the name of an event or `*`; raise ValueError otherwise."""
    if event != ANY_EVENT and event not in EVENTS:
        bare = event.removeprefix("EVENT_")
        suggestion = bare if bare in EVENTS else "* for every event or a name such as STAGE_FAILED"
        raise ValueError(f'event "{event}" does not exist, write {suggestion}')
    return event


class MentionSpec(Spec):
    """The Slack users and groups and the mail addresses to notify of one event, or `*` for all."""

    event: Annotated[str, Field(validate_default=True)] = ""
    slack: tuple[str, ...] = ()
    slackusers: tuple[str, ...] = ()
    slackgroups: tuple[str, ...] = ()
    email: tuple[str, ...] = ()

    @field_validator("event")
    @classmethod
    def _event_exists(cls, event: str) -> str:
        return check_event(event)


class NotificationSpec(Spec):
    """The users to mention in notifications about an application."""

    mentions: tuple[MentionSpec, ...] = ()

    def users(self, event: str) -> tuple[str, ...]:
        """Return the Slack users to mention for an event, each once."""
        users = [u for m in self._of_event(event) for u in (*m.slack, *m.slackusers)]
        return tuple(dict.fromkeys(users))

    def groups(self, event: str) -> tuple[str, ...]:
        """Return the Slack groups to mention for an event, each once."""
        return tuple(dict.fromkeys(g for m in self._of_event(event) for g in m.slackgroups))

    def emails(self, event: str) -> tuple[str, ...]:
        """Return the additional mail addresses for an event, each once."""
        return tuple(dict.fromkeys(e for m in self._of_event(event) for e in m.email))

    def _of_event(self, event: str) -> list[MentionSpec]:
        return [m for m in self.mentions if m.event in (ANY_EVENT, event)]


STAGE_TIMEOUT = Duration(6 * 3600)


class SkipOn(Spec):
    """The conditions that skip a stage; one of them suffices."""

    commit_message_prefixes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


class StageSpec(Spec):
    """One stage: its name, options, timeout and skip conditions.

    `with_` is passed to the plugin unchanged; an explicit null stays null.
    """

    tolerant: ClassVar[bool] = True

    id: str = ""
    name: str = ""
    desc: str = ""
    timeout: Duration = STAGE_TIMEOUT
    skip_on: SkipOn = SkipOn()
    with_: Annotated[Any, Field(alias="with", default_factory=dict[str, Any])]

    def advice(self) -> Iterator[Advice]:
        """Yield a missing name and a negative timeout."""
        if not self.name:
            what = "must be set, no plugin has a stage without a name"
            yield Advice(("name",), what, unplannable=True)
        if self.timeout < 0:
            yield Advice(("timeout",), "is negative, the stage times out at once")


class PipelineSpec(Spec):
    """The stages in order; without stages it is a quick sync."""

    stages: tuple[StageSpec, ...] = ()


# Fields of stages that files of the first generation have in `with`.
_OF_ANY_STAGE = frozenset({"timeout", "skipOn"})
PLUGINS: Path = ("spec", "plugins")
STAGES: Path = ("spec", "pipeline", "stages")


@dataclass(frozen=True, slots=True)
class StageNode:
    """A stage of a pipeline before it is decoded."""

    path: Path
    name: str
    name_node: Node
    options: Node
    """Its `with`, or null."""


def stage_nodes(spec: Node) -> Iterator[StageNode]:
    """Yield the stages of a pipeline, also if the file has other mistakes."""
    pipeline = entry_of(spec, "pipeline")
    stages = entry_of(pipeline.value, "stages") if pipeline else None
    if not stages or not isinstance(stages.value, List):
        return
    for i, node in enumerate(stages.value.items):
        name, options = entry_of(node, "name"), entry_of(node, "with")
        text = name.value.value if name and isinstance(name.value, Scalar) else None
        yield StageNode(
            path=(*STAGES, i),
            name=text if isinstance(text, str) else "",
            name_node=name.value if name else node,
            options=options.value if options else Scalar(None, node.mark),
        )


def check_stages(decoder: Decoder, spec: Node, catalog: Catalog) -> None:
    """Warn of stages that no plugin has, and of options that their plugins refuse or ignore."""
    for stage in stage_nodes(spec):
        options = catalog.stages.get(stage.name)
        if options:
            path = (*stage.path, "with")
            misplaced = _misplaced(stage, options)
            for entry in misplaced:
                decoder.add(
                    "has no effect here, write it beside the name of the stage",
                    at=entry.mark,
                    path=(*path, entry.key),
                    level=Level.WARNING,
                )
            node = stage.options
            if misplaced and isinstance(node, Map):
                node = Map(tuple(e for e in node if e not in misplaced), node.mark)
            decoder.decode(node, options, path=path, wrong=Level.UNPLANNABLE)
        elif stage.name:
            what = unknown_word("no installed plugin has this stage", stage.name, catalog.stages)
            path = (*stage.path, "name")
            decoder.add(what, at=stage.name_node.mark, path=path, level=Level.WARNING)


def _misplaced(stage: StageNode, options: type[Spec]) -> tuple[Entry, ...]:
    """Fields of any stage in the options of one, where files of the first generation have them."""
    if not isinstance(stage.options, Map):
        return ()
    fields = fields_of(options)
    return tuple(e for e in stage.options if e.key in _OF_ANY_STAGE and e.key not in fields)


def check_sections(decoder: Decoder, spec: Node, catalog: Catalog) -> None:
    """Warn of plugin sections that their plugins refuse or ignore."""
    plugins = entry_of(spec, "plugins")
    if not plugins or not isinstance(plugins.value, Map):
        return
    for entry in plugins.value:
        plugin, path = catalog.plugin(entry.key), (*PLUGINS, entry.key)
        if plugin and plugin.application:
            decoder.decode(entry.value, plugin.application, path=path, wrong=Level.UNPLANNABLE)
        elif plugin and isinstance(entry.value, Map) and entry.value.entries:
            what = f"the plugin {plugin.name} does not use this"
            decoder.add(what, at=entry.mark, path=path, level=Level.WARNING)


MIN_WINDOW = Duration(5 * 60)


class OnCommitSpec(Spec):
    """Triggers on commits that change the directory of the application or one of `paths`.

    A commit that changes a file of `ignores` does not trigger, whatever else it changes.
    """

    disabled: bool = False
    paths: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()


class OnCommandSpec(Spec):
    """Triggers when a user requests a sync."""

    disabled: bool = False


class OnOutOfSyncSpec(Spec):
    """Triggers when the application is out of sync and no deployment ended within `min_window`."""

    disabled: bool = True
    min_window: Duration = MIN_WINDOW


class OnChainSpec(Spec):
    """Triggers as a later block of a deployment chain."""

    disabled: bool = True


class TriggerSpec(Spec):
    """The triggers of deployments."""

    on_commit: OnCommitSpec = OnCommitSpec()
    on_command: OnCommandSpec = OnCommandSpec()
    on_out_of_sync: OnOutOfSyncSpec = OnOutOfSyncSpec()
    on_chain: OnChainSpec = OnChainSpec()


GIT_UPDATE = "GIT_UPDATE"
_REPLACEMENT_FIELDS = "write yamlField, jsonField, HCLField or regex"


class ReplacementSpec(Spec):
    """One value of a file that an event replaces."""

    file: str = ""
    yaml_field: str = ""
    json_field: str = ""
    hcl_field: Annotated[str, Field(alias="HCLField")] = ""
    regex: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the keys of the fields that are set; only the first is used."""
        values = {
            "yamlField": self.yaml_field,
            "jsonField": self.json_field,
            "HCLField": self.hcl_field,
            "regex": self.regex,
        }
        return tuple(key for key, value in values.items() if value)

    def advice(self) -> Iterator[Advice]:
        """Yield what makes every event fail, and fields that are not used."""
        if not self.fields:
            yield Advice((), f"does not say what to replace, {_REPLACEMENT_FIELDS}")
        paths = {
            "yamlField": self.yaml_field,
            "jsonField": self.json_field,
            "HCLField": self.hcl_field,
        }
        for key, path in paths.items():
            if path and not path.startswith("$"):
                yield Advice((key,), "must begin with $, such as $.spec.items[0].name")
        if self.regex and "(" not in self.regex:
            yield Advice(("regex",), "has no group, put the part to replace in parentheses")
        if len(self.fields) > 1:
            yield Advice((), f"only {self.fields[0]} is used, write one field for each replacement")


class EventMatcherSpec(Spec):
    """Selects events by their name and labels."""

    name: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])


class EventUpdateSpec(Spec):
    """The commit for an event; paths are relative to the directory of the application."""

    commit_message: str = ""
    make_pull_request: bool = False
    replacements: tuple[ReplacementSpec, ...] = ()


class EventHandlerSpec(Spec):
    """The action for an event."""

    type: str = ""
    config: EventUpdateSpec = EventUpdateSpec()

    def advice(self) -> Iterator[Advice]:
        """Yield a type that does nothing."""
        if self.type != GIT_UPDATE:
            yield Advice(("type",), f"this type does nothing, write {GIT_UPDATE}")


class EventWatchSpec(Spec):
    """One entry of `eventWatcher` in an application file."""

    matcher: EventMatcherSpec = EventMatcherSpec()
    handler: EventHandlerSpec = EventHandlerSpec()


class WatchedEventSpec(Spec):
    """One event of a file of kind EventWatcher; paths are relative to the repository."""

    name: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])
    replacements: tuple[ReplacementSpec, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        refuse(
            self,
            (not self.name, "name", "event name must not be empty"),
            (not self.replacements, "replacements", "must have at least one replacement"),
            *(
                rule
                for i, r in enumerate(self.replacements)
                for rule in (
                    (not r.file, ("replacements", i, "file"), "a replacement must name a file"),
                    (
                        not r.fields,
                        ("replacements", i),
                        f"a replacement must have a field, {_REPLACEMENT_FIELDS}",
                    ),
                    # Upstream accepts two fields, so we must as well.
                    (
                        len(r.fields) > 2,
                        ("replacements", i),
                        "a replacement must not have multiple fields, write only one",
                    ),
                )
            ),
        )
        return self


class EventWatcherFileSpec(Spec):
    """The `spec` of the kind EventWatcher."""

    events: tuple[WatchedEventSpec, ...] = ()


DEPLOYMENT_TIMEOUT = Duration(6 * 3600)


class PlannerSpec(Spec):
    """How a deployment is planned, and whether it is rolled back when it fails."""

    always_use_pipeline: bool = False
    auto_rollback: bool = True


class CommitMatcherSpec(Spec):
    """Regular expressions for the subject of a commit that select a sync strategy."""

    pipeline: str = ""
    quick_sync: str = ""

    def advice(self) -> Iterator[Advice]:
        """Yield invalid regular expressions."""
        for key, expression in (("pipeline", self.pipeline), ("quickSync", self.quick_sync)):
            try:
                Regex(expression)
            except RegexSyntaxError as e:
                yield Advice((key,), f"not a regular expression: {e}")


class ApplicationSpec(Spec):
    """The `spec` of an application file.

    `plugins` has the undecoded sections of plugins, also for v0 kinds.
    """

    name: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])
    description: str = ""
    planner: PlannerSpec = PlannerSpec()
    commit_matcher: CommitMatcherSpec = CommitMatcherSpec()
    pipeline: PipelineSpec = PipelineSpec()
    trigger: TriggerSpec = TriggerSpec()
    post_sync: PostSyncSpec | None = None
    timeout: Duration = DEPLOYMENT_TIMEOUT
    encryption: EncryptionSpec | None = None
    attachment: AttachmentSpec | None = None
    notification: NotificationSpec | None = None
    event_watcher: tuple[EventWatchSpec, ...] = ()
    drift_detection: DriftDetectionSpec | None = None
    plugins: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict[str, Mapping[str, Any]])

    def advice(self) -> Iterator[Advice]:
        """Yield a name that cannot be stored, and a negative timeout."""
        if self.name and (problem := name_problem(self.name)):
            yield Advice(("name",), f"{problem}, it cannot be deployed", unplannable=True)
        if self.timeout < 0:
            yield Advice(("timeout",), "is negative, every deployment times out at once")
