# SPDX-License-Identifier: Apache-2.0
"""The section `rendering` of a piped file: what the content of a repository may use and cost."""

import re
from typing import Self

from pydantic import model_validator

from pipecd.config.spec import Rule, Spec, refuse
from pipecd.config.units import Duration, Size

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*"
)
_OPTION = re.compile(r"[a-z][a-z0-9_-]*")


class RenderingSpec(Spec):
    """What templates, Helm and Kustomize may use besides the files of the repository.

    A branch that nobody has reviewed is rendered for its plan preview.
    """

    variables: tuple[str, ...] = ()
    value_file_hosts: tuple[str, ...] = ()
    kustomize_options: tuple[str, ...] = ()
    timeout: Duration = Duration(5 * 60)
    memory: Size = Size(2 * 1024**3)
    working_copy_entries: int = 1_000_000
    working_copy_size: Size = Size(16 * 1024**3)

    @model_validator(mode="after")
    def _well_formed(self) -> Self:
        lists = (
            ("variables", self.variables, _VARIABLE, "write the name of an environment variable"),
            (
                "valueFileHosts",
                self.value_file_hosts,
                _HOST,
                "write the name of a host, without scheme and port",
            ),
            (
                "kustomizeOptions",
                self.kustomize_options,
                _OPTION,
                "write the name of a flag of kustomize build, without dashes",
            ),
        )
        rules: list[Rule] = [
            (not pattern.fullmatch(value), (key, i), f'invalid value "{value}", {what}')
            for key, values, pattern, what in lists
            for i, value in enumerate(values)
        ]
        rules += [
            (value < 0, key, f"{key} must be greater than or equal to 0")
            for key, value in (
                ("timeout", self.timeout),
                ("workingCopyEntries", self.working_copy_entries),
            )
        ]
        refuse(self, *rules)
        return self
