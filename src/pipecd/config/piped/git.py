# SPDX-License-Identifier: Apache-2.0
"""How piped reaches Git and signs its commits."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from pipecd.config.rule import refuse
from pipecd.config.spec import Spec


class GitSpec(Spec):
    """Settings of the Git client; an empty value means the effective default beside it."""

    username: str = ""
    email: str = ""
    ssh_config_file_path: str = ""
    host: str = ""
    host_name: str = ""
    ssh_key_file: str = ""
    ssh_key_data: Annotated[str, Field(repr=False)] = ""
    password: Annotated[str, Field(repr=False)] = ""

    @model_validator(mode="after")
    def _one_way_to_authenticate(self) -> Self:
        has_key = bool(self.ssh_key_file or self.ssh_key_data)
        refuse(
            self,
            (
                has_key and self.password,
                "password",
                "cannot configure both sshKeyData or sshKeyFile and password authentication",
            ),
            (
                self.ssh_key_file and self.ssh_key_data,
                "sshKeyData",
                "only either sshKeyFile or sshKeyData can be set",
            ),
            (
                self.password and not self.username,
                "username",
                "both username and password must be set",
            ),
        )
        return self

    @property
    def ssh_host(self) -> str:
        """Return the `Host` of the ssh block for the key."""
        return self.host or "github.com"

    @property
    def ssh_host_name(self) -> str:
        """Return the `Hostname` of the ssh block for the key."""
        return self.host_name or self.ssh_host

    @property
    def ssh_config_file(self) -> Path:
        """Return the ssh client configuration that gets a block for the key."""
        if self.ssh_config_file_path:
            return Path(self.ssh_config_file_path)
        return Path.home() / ".ssh" / "config"


class RepositorySpec(Spec):
    """One repository this piped handles."""

    repo_id: str = ""
    remote: str = ""
    branch: str = ""
