# SPDX-License-Identifier: Apache-2.0
"""What runs in the end, by the targets themselves: scripts, programs, states of Terraform, the cluster."""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from faults.applications import (
    BROKEN,
    CONFIG,
    SETTING_LABEL,
    FaultyApplication,
    Platform,
    Revision,
    setting_object,
)
from faults.ending import Head
from faults.truth import TruthLine
from faults.whole_installation import WholeInstallation

_PROGRAM = b"sleep\x001000000"


@dataclass(frozen=True)
class TargetReader:
    """Reads the targets of an installation while no user pushes."""

    installed: WholeInstallation
    revisions: Mapping[str, Revision]
    """The revisions that were pushed, by their nonce."""

    def heads(self) -> dict[str, Head]:
        """The head of each application and what runs of it."""
        installed = self.installed
        # Pipeds push the values of events at any time: all is read of one commit.
        commit = installed.origin.git("rev-parse", "HEAD")
        installed.read_contents()
        truth, head = installed.truth.read(), installed.contents[commit]
        by_application: dict[str, list[TruthLine]] = {}
        for line in truth:
            by_application.setdefault(line.application, []).append(line)
        heads: dict[str, Head] = {}
        for name, application in tuple(installed.applications.items()):
            if name not in head:
                # A force push removed its files: its configuration is missing.
                heads[name] = Head("", is_broken=True)
                continue
            text = installed.origin.git("show", f"{commit}:{name}/{CONFIG}")
            nonce = installed.nonces.get(head[name], "")
            revision = self.revisions.get(nonce)
            running, is_ended = self._running(application, by_application.get(name, []))
            heads[name] = Head(
                head[name],
                is_broken=text.startswith(BROKEN),
                running=running,
                is_running_ended=is_ended,
                fails=revision is not None and revision.fails,
                nonce=nonce,
            )
        return heads

    def _running(
        self, application: FaultyApplication, truth: list[TruthLine]
    ) -> tuple[str | None, bool]:
        """The content that runs, and whether what started it has ended."""
        name, contents = application.name, self.installed.contents
        match application.platform:
            case Platform.SCRIPT:
                runs = [t for t in truth if t.what == "begin" and not t.label.startswith("undo")]
                if not runs:
                    return None, True
                ends = {(t.pid, t.deployment) for t in truth if t.what == "end"}
                last = runs[-1]
                return contents.get(last.commit, {}).get(name, ""), (last.pid, last.deployment) in ends  # fmt: skip
            case Platform.PROCESS:
                # The last one that was started may have failed, and the one before it goes on.
                alive = [t for t in truth if t.what == "start" and _is_program(t.pid)]
                commit = alive[-1].commit if alive else ""
                return (contents.get(commit, {}).get(name, "") if alive else None), True
            case Platform.TERRAFORM | Platform.KUBERNETES:
                nonce = self._deployed_nonce(application)
                of_nonce = {self.installed.nonces[c]: c for c in self.installed.nonces}
                return of_nonce.get(nonce or "", "nothing that was pushed"), True

    def _deployed_nonce(self, application: FaultyApplication) -> str | None:
        """The revision by the state of Terraform or the objects of the cluster."""
        name = application.name
        with suppress(OSError, ValueError, LookupError):
            if application.platform is Platform.TERRAFORM:
                file = self.installed.directory / "states" / f"{name}.tfstate"
                (resource,) = json.loads(file.read_text())["resources"]
                return str(resource["instances"][0]["attributes"]["input"]["value"])
            return self._data(name, "revision")
        return None

    def _data(self, config_map: str, key: str) -> str:
        """A value of a ConfigMap; raises LookupError if there is none."""
        assert self.installed.kubernetes is not None
        namespace = self.installed.targets.namespace
        path = f"/api/v1/namespaces/{namespace}/configmaps/{config_map}"
        return str(self.installed.kubernetes.ask("GET", path)["data"][key])

    def cluster_settings(self) -> dict[str, tuple[str, str]]:
        """The revision and the setting that the cluster has of each application of Kubernetes."""
        found: dict[str, tuple[str, str]] = {}
        for name, application in tuple(self.installed.applications.items()):
            if application.platform is Platform.KUBERNETES:
                with suppress(OSError, ValueError, LookupError):
                    setting = self._data(setting_object(name), SETTING_LABEL)
                    found[name] = (self._data(name, "revision"), setting)
        return found

    def revisions_by_commit(self) -> dict[tuple[str, str], str]:
        """The nonces of revisions by application and commit."""
        return {
            (name, commit): nonce
            for commit, of_commit in self.installed.contents.items()
            for name, content in of_commit.items()
            if (nonce := self.installed.nonces.get(content))
        }

    def failing(self) -> set[tuple[str, str]]:
        """Applications with the commits and the nonces of revisions that are meant to fail."""
        nonces = {nonce for nonce, revision in self.revisions.items() if revision.fails}
        by_nonce = {(name, nonce) for name in self.installed.applications for nonce in nonces}
        return self._commits_of(nonces) | by_nonce

    def broken_commits(self) -> set[tuple[str, str]]:
        """Applications with the commits at which their file does not parse."""
        return self._commits_of({n for n, revision in self.revisions.items() if revision.is_broken})

    def _commits_of(self, nonces: Collection[str]) -> set[tuple[str, str]]:
        return {
            (name, commit)
            for commit, of_commit in self.installed.contents.items()
            for name, content in of_commit.items()
            if self.installed.nonces.get(content) in nonces
        }

    def running_programs(self) -> dict[str, list[str]]:
        """The programs of process applications that run, which wrote their process id themselves."""
        running: dict[str, list[str]] = {
            application.name: []
            for application in self.installed.applications.values()
            if application.platform is Platform.PROCESS
        }
        for line in self.installed.truth.lines:
            is_start = line.what == "start" and line.application in running
            if is_start and _is_program(line.pid):
                running[line.application].append(f"{line.label} of {line.commit[:7]}")
        return running


def _is_program(pid: str) -> bool:
    """Whether a program that wrote this process id itself still runs."""
    with suppress(OSError):
        return _PROGRAM in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
