# SPDX-License-Identifier: Apache-2.0
"""Stages that a first-generation piped planned, as stages of plugins.

Such a piped may have been replaced in the middle of a deployment. The stages of its plan have the
names of its platforms, and its rollback is one stage for all of them, without a mark.
"""

from pipecd.config.catalog import Catalog
from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import ROLLBACK_STAGE, StageStatus
from pipecd.proto.model.deployment_pb2 import Deployment

_SCRIPT_ROLLBACK = "SCRIPT_RUN_ROLLBACK"
_BASE_STAGE = "baseStageID"
_NEVER_RAN = (StageStatus.NOT_STARTED_YET, StageStatus.SKIPPED)


def adopt_v0_stages(deployment: Deployment, catalog: Catalog) -> None:
    """Changes the stages of a deployment into those of the plugins that continue it.

    The rollback of a script that never ran is removed.
    """
    by_id = {stage.id: stage for stage in deployment.stages}
    for stage in list(deployment.stages):
        if stage.rollback:
            continue
        if stage.name == ROLLBACK_STAGE:
            stage.rollback = True
            kind = catalog.v0_kind_of_application(ApplicationKind(deployment.kind))
            stage.name = (kind and kind.rollback_stage) or stage.name
        elif stage.name == _SCRIPT_ROLLBACK:
            stage.rollback = True
            base = by_id.get(stage.metadata.get(_BASE_STAGE, ""))
            if base is None or StageStatus(base.status) in _NEVER_RAN:
                deployment.stages.remove(stage)
            else:
                # What it runs is in the entry of the pipeline that the script comes from.
                stage.index, stage.predefined = base.index, False
        elif (translated := catalog.v0_stages.get(stage.name)) and translated.name:
            stage.name = translated.name
