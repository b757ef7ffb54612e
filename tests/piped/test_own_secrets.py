# SPDX-License-Identifier: Apache-2.0
"""Variables that contain a secret of piped do not reach the programs that it starts."""

import base64

from pipecd.config.catalog import load_catalog
from pipecd.config.piped import piped_key
from pipecd.config.piped_mask import secret_values
from pipecd.config.read import read_piped
from pipecd.piped.own_secrets import remove_secrets

KEY = base64.b64encode(b"the-key-of-this-piped").decode()
PASSWORD = base64.b64encode(b"the-password-for-git").decode()
CONFIG = f"""
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: shop
  pipedID: p1
  pipedKeyData: {KEY}
  apiAddress: localhost:9080
  git: {{username: bot, password: {PASSWORD}}}
  notifications:
    receivers: [{{name: chat, slack: {{hookURL: "https://hooks.example/T0/B0/secret-path"}}}}]
  secretManagement:
    type: GCP_KMS
    config: {{keyName: k, decryptServiceAccountFile: /etc/gcp.json}}
  plugins:
    - name: kubernetes
      config: {{chartRepositories: [{{name: a, address: https://a, password: chart-password}}]}}
"""


def test_variables_with_secrets_of_piped_are_removed() -> None:
    spec = read_piped(CONFIG.encode(), file="piped.yaml", catalog=load_catalog()).spec
    environment = {
        "PIPED_KEY": "the-key-of-this-piped",
        "PIPED_KEY_DATA": KEY,
        "CONFIG_DATA": base64.b64encode(CONFIG.encode()).decode(),
        "CONFIG_TEXT": CONFIG,
        "GIT_TOKEN": "the-password-for-git",
        "SLACK": "https://hooks.example/T0/B0/secret-path",
        "CHARTS": "chart-password",
    }
    kept = {
        "PATH": "/usr/bin:/bin",
        "GOOGLE_APPLICATION_CREDENTIALS": "/etc/gcp.json",
        "AWS_SECRET_ACCESS_KEY": "of-the-stages",
        "EMPTY": "",
        "NAME": "bot",
    }
    secrets = environment.keys() | set[str]()
    environment |= kept

    removed = remove_secrets(environment, {piped_key(spec), *secret_values(spec)})

    assert set(removed) == secrets
    assert environment == kept
