# SPDX-License-Identifier: Apache-2.0
"""The programs of plugins on this machine."""

from pathlib import Path

from pipecd.config.piped.plugin import PluginSpec
from pipecd.wire.download.store import Download, ProgramStore
from pipecd.wire.oci.manifest import PLUGIN_LAYER


class PluginStore:
    """The directory of downloaded plugins."""

    def __init__(self, directory: Path, *, redownload: bool = False) -> None:
        self._programs = ProgramStore(directory, redownload=redownload)

    async def program(self, spec: PluginSpec) -> Path:
        """The program of a plugin, which is fetched first when it is not there."""
        return await self._programs.program(
            Download(
                kind="plugin",
                name=spec.name,
                url=spec.url,
                checksum=spec.checksum,
                layer_type=PLUGIN_LAYER,
                url_setting="plugins[].url",
                checksum_setting="plugins[].checksum",
            )
        )
