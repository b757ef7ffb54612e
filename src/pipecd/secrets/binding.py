# SPDX-License-Identifier: Apache-2.0
"""What a bound secret was encrypted for, and which pipeds decrypt bound secrets; pure."""

import json
from dataclasses import dataclass

from pipecd.config.application import config_path
from pipecd.config.piped import BOUND
from pipecd.config.yaml_tree import YamlMistake, read_yaml, to_plain
from pipecd.proto.model.application_pb2 import Application


@dataclass(frozen=True)
class Binding:
    """The application's configuration file that a bound secret is written in.

    It is a file rather than the id of an application, so that a secret can be encrypted before its
    application is registered, and survives that the application is deleted and added again or
    moved to another control plane.
    """

    project: str
    repository: str
    """The id of the repository in the configuration of piped, which survives a new remote."""
    path: str
    """The path of the file from the root of the repository."""

    @classmethod
    def of_application(cls, application: Application) -> "Binding":
        """Returns the configuration file of a registered application."""
        git_path = application.git_path
        return cls(application.project_id, git_path.repo.id, config_path(git_path))

    def associated_data(self) -> bytes:
        """Returns the data that is authenticated with the secret; no two files have the same."""
        return json.dumps(
            ["pipecd bound secret", self.project, self.repository, self.path]
        ).encode()

    def __str__(self) -> str:
        return f"{self.path} in repository {self.repository} of project {self.project}"


def decrypts_bound_secrets(reported_config: str) -> bool:
    """Whether the piped that reported this configuration decrypts bound secrets.

    Pipeds of upstream, and those of ours that do not know bound secrets, never report the key.
    """
    try:
        config = to_plain(read_yaml(reported_config))
    except YamlMistake:
        return False
    match config:
        case {"secretManagement": {"forms": [*forms]}}:
            return BOUND in forms
        case _:
            return False
