# SPDX-License-Identifier: Apache-2.0
"""What an application on Amazon ECS declares."""

from pydantic import field_validator

from pipecd.sdk.config import Spec

ACCESS_TYPES = ("ELB", "SERVICE_DISCOVERY")


class VpcConfiguration(Spec):
    """The network of a standalone task."""

    subnets: tuple[str, ...] = ()
    assign_public_ip: str = ""
    security_groups: tuple[str, ...] = ()


class TargetGroup(Spec):
    """A target group of the load balancer and the container behind it."""

    target_group_arn: str = ""
    container_name: str = ""
    container_port: int = 0
    load_balancer_name: str = ""


class TargetGroups(Spec):
    """The target groups that receive the traffic of each variant."""

    primary: TargetGroup | None = None
    canary: TargetGroup | None = None


class TaskInput(Spec):
    """The definitions of a service, or of a standalone task when no service is named."""

    task_definition_file: str = "taskdef.json"
    service_definition_file: str = ""
    cluster_arn: str = ""
    launch_type: str = "FARGATE"
    awsvpc_configuration: VpcConfiguration = VpcConfiguration()
    access_type: str = "ELB"
    target_groups: TargetGroups = TargetGroups()

    @field_validator("access_type")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ACCESS_TYPES:
            raise ValueError(f"invalid accessType: {value}, write {' or '.join(ACCESS_TYPES)}")
        return value


class EcsInput(TaskInput):
    """The `input` of the section; a standalone task runs only when asked to."""

    run_standalone_task: bool = False


class QuickSync(Spec):
    """Quick sync; `recreate` stops every task before the new ones start."""

    recreate: bool = False


class EcsApplication(Spec):
    """The section `plugins.ecs` of an application."""

    input: EcsInput = EcsInput()
    quick_sync: QuickSync = QuickSync()


class V0EcsInput(TaskInput):
    """The `input` of a first-generation ECSApp, where a standalone task runs unless told not to."""

    run_standalone_task: bool = True
    auto_rollback: bool = True


class V0EcsApp(Spec):
    """The fields of a first-generation ECSApp beyond the generic ones."""

    input: V0EcsInput = V0EcsInput()
    quick_sync: QuickSync = QuickSync()
