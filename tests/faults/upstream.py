# SPDX-License-Identifier: Apache-2.0
"""Upstream's pipeds beside ours: how they are started and configured."""

import json
import os
import shutil
from pathlib import Path

from faults.applications import TOOL_VERSION, Upstream
from faults.registration import UPSTREAM_PROVIDER
from servers.programs import built_program
from servers.server import free_port, free_ports

NOT_PROMISED = frozenset({
    "the sync state is right", "notifications come at least once", "notifications keep their order",
})  # fmt: skip
"""Rules that depend on a piped alone, and that upstream's pipeds do not keep."""
_PLUGINS = ("wait", "waitapproval", "scriptrun")


def upstream_arguments(program: Path, config: Path) -> list[str]:
    """The command line; neither generation can choose a free port by itself."""
    tools = config.parent / "tools"
    flags = ["--insecure=true", f"--config-file={config}", f"--tools-dir={tools}"]
    flags.append(f"--admin-port={free_port()}")
    if program.name == Upstream.FIRST:
        tools.mkdir(parents=True)
        shutil.copy(built_program("terraform"), tools / f"terraform-{TOOL_VERSION}")
        return ["piped", "piped", *flags]
    return ["piped", "run", *flags, f"--plugin-service-port={free_port()}"]


def upstream_environment(home: Path) -> dict[str, str]:
    """A home directory of its own, and nothing that is asked of the internet."""
    return {"HOME": str(home), "PATH": os.environ["PATH"], "CHECKPOINT_DISABLE": "1"}


def upstream_settings(program: Path) -> str:
    """The part of the configuration that depends on the generation."""
    lines = ["  syncInterval: 5s"]
    if program.name == Upstream.FIRST:
        providers = [{"name": UPSTREAM_PROVIDER, "type": "TERRAFORM"}]
        lines.append(f"  platformProviders: {json.dumps(providers)}")
    else:
        plugins = [
            {"name": name, "url": f"file://{program.parent / 'plugins' / name}", "port": port}
            for name, port in zip(_PLUGINS, free_ports(len(_PLUGINS)), strict=True)
        ]
        lines.append(f"  plugins: {json.dumps(plugins)}")
    return "".join(f"{line}\n" for line in lines)
