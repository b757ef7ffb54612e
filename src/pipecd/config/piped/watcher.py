# SPDX-License-Identifier: Apache-2.0
"""How piped applies events to Git and answers plan previews."""

from typing import Self

from pydantic import field_validator, model_validator

from pipecd.config.duration import Duration
from pipecd.config.rule import refuse
from pipecd.config.spec import Spec


class EventWatcherRepoSpec(Spec):
    """Overrides for the event watcher files of one repository."""

    repo_id: str = ""
    commit_message: str = ""
    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()


class EventWatcherSpec(Spec):
    """How often events are looked for, and overrides by repository.

    Every repository of the piped is watched, listed here or not, as upstream does.
    """

    check_interval: Duration = Duration(60)
    git_repos: tuple[EventWatcherRepoSpec, ...] = ()

    @field_validator("check_interval")
    @classmethod
    def _not_negative(cls, value: Duration) -> Duration:
        if value < 0:
            raise ValueError("eventWatcher.checkInterval must be greater than or equal to 0")
        return value

    @model_validator(mode="after")
    def _repos_are_told_apart(self) -> Self:
        ids = [repo.repo_id for repo in self.git_repos]
        missing = (
            (not id, ("gitRepos", i, "repoId"), f"missing repoID at index {i}")
            for i, id in enumerate(ids)
        )
        doubled = (
            (
                id and id in ids[:i],
                ("gitRepos", i, "repoId"),
                f"duplicated repo id ({id}) found in the eventWatcher directive",
            )
            for i, id in enumerate(ids)
        )
        refuse(self, *missing, *doubled)
        return self


class PlanPreviewSpec(Spec):
    """How plan previews are worked on."""

    worker_num: int = 3
    command_queue_buffer_size: int = 10
    command_check_interval: Duration = Duration(5)
    command_handle_timeout: Duration = Duration(5 * 60)

    @model_validator(mode="after")
    def _nothing_negative(self) -> Self:
        numbers = {
            "workerNum": self.worker_num,
            "commandQueueBufferSize": self.command_queue_buffer_size,
            "commandCheckInterval": self.command_check_interval,
            "commandHandleTimeout": self.command_handle_timeout,
        }
        refuse(
            self,
            *(
                (value < 0, key, f"planPreview.{key} must be greater than or equal to 0")
                for key, value in numbers.items()
            ),
        )
        return self
