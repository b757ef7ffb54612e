# SPDX-License-Identifier: Apache-2.0
"""Checks what an application file says to plugins.

Upstream leaves these parts to the plugins, which complain when a deployment is planned or a stage
begins. So they are warnings here, and only for the plugins whose types are at hand.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipecd.config.catalog import Catalog
from pipecd.config.decode import Decoder, Level, entry_of, unknown_word
from pipecd.config.report import Path
from pipecd.config.yamltree import List, Map, Node, Scalar

PLUGINS: Path = ("spec", "plugins")
STAGES: Path = ("spec", "pipeline", "stages")


@dataclass(frozen=True, slots=True)
class StageNode:
    """A stage as it is written."""

    path: Path
    name: str
    name_node: Node
    options: Node
    """Its `with`, null when there is none."""


def stage_nodes(spec: Node) -> Iterator[StageNode]:
    """Yield the stages of a pipeline, also of a file that has mistakes elsewhere."""
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
    """Warn of options that the plugins of the stages will refuse or ignore."""
    for stage in stage_nodes(spec):
        options = catalog.stages.get(stage.name)
        if options:
            path = (*stage.path, "with")
            decoder.decode(stage.options, options, path=path, wrong=Level.WARNING)
        elif stage.name:
            what = "no plugin at hand has this stage"
            meant = unknown_word(what, stage.name, catalog.stages)
            path = (*stage.path, "name")
            decoder.tell(meant, at=stage.name_node.mark, path=path, level=Level.WARNING)


def check_sections(decoder: Decoder, spec: Node, catalog: Catalog) -> None:
    """Warn of sections that their plugins will refuse or ignore."""
    plugins = entry_of(spec, "plugins")
    if not plugins or not isinstance(plugins.value, Map):
        return
    for entry in plugins.value:
        plugin, path = catalog.plugin(entry.key), (*PLUGINS, entry.key)
        if plugin and plugin.application:
            decoder.decode(entry.value, plugin.application, path=path, wrong=Level.WARNING)
        elif plugin and isinstance(entry.value, Map) and entry.value.entries:
            what = f"the plugin {plugin.name} reads nothing here"
            decoder.tell(what, at=entry.mark, path=path, level=Level.WARNING)
