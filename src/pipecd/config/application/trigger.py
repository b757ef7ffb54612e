# SPDX-License-Identifier: Apache-2.0
"""What makes an application deploy."""

from pipecd.config.duration import Duration
from pipecd.config.spec import Spec

MIN_WINDOW = Duration(5 * 60)


class OnCommitSpec(Spec):
    """Commits count when they touch the directory of the application or one of `paths`.

    One changed file that matches `ignores` vetoes the whole commit.
    """

    disabled: bool = False
    paths: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()


class OnCommandSpec(Spec):
    """A person asks for a sync."""

    disabled: bool = False


class OnOutOfSyncSpec(Spec):
    """What runs is not what Git says, and the last deployment ended `min_window` ago."""

    disabled: bool = True
    min_window: Duration = MIN_WINDOW


class OnChainSpec(Spec):
    """Another application of a chain was deployed."""

    disabled: bool = True


class TriggerSpec(Spec):
    """The four reasons to deploy, each of which can be turned off."""

    on_commit: OnCommitSpec = OnCommitSpec()
    on_command: OnCommandSpec = OnCommandSpec()
    on_out_of_sync: OnOutOfSyncSpec = OnOutOfSyncSpec()
    on_chain: OnChainSpec = OnChainSpec()
