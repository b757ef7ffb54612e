# SPDX-License-Identifier: Apache-2.0
"""The containers of the task definitions in upstream's guide for ECS; only addresses are filled in."""

from typing import Any

CONFIG = """\
apiVersion: "pipecd.dev/v1beta1"
kind: ControlPlane
spec:
  datastore:
    type: MYSQL
    config:
      url: {user}:{password}@tcp(pipecd-mysql:{port})
      database: quickstart
  filestore:
    type: S3
    config:
      bucket: logs
      region: eu-west-1
  projects:
    - id: quickstart
      staticAdmin:
        username: hello-pipecd
        passwordHash: "$2a$10$ye96mUqUqTnjUqgwQJbJzel/LJibRhUnmzyypACkvrTSnQpVFZ7qK"
"""
CONFIG_FILE = "control-plane-config.yaml"


def container(command: str, mysql: str) -> dict[str, Any]:
    """A container that writes its configuration, with the host of the database, and runs a command."""
    prepare = (
        f"echo $CONTROL_PLANE_CONFIG; echo $CONTROL_PLANE_CONFIG | base64 -d >> {CONFIG_FILE}; "
        f"sed -i -e s/pipecd-mysql/{mysql}/ {CONFIG_FILE}; echo $ENCRYPTION_KEY >> encryption-key;"
    )
    return {"entryPoint": ["sh", "-c"], "command": [f"/bin/sh -c '{prepare} {command}'"]}


def server(*, mysql: str, redis: str) -> dict[str, Any]:
    flags = f"--insecure-cookie=true --cache-address={redis} --config-file={CONFIG_FILE} --enable-grpc-reflection=false --encryption-key-file=encryption-key --log-encoding=humanize --metrics=true"  # fmt: skip
    return container(f"pipecd server {flags};", mysql)


def ops(*, mysql: str, redis: str) -> dict[str, Any]:
    flags = f"--cache-address={redis} --config-file={CONFIG_FILE} --log-encoding=humanize --metrics=true"  # fmt: skip
    return container(f"pipecd ops {flags};", mysql)
