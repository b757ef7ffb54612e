# SPDX-License-Identifier: Apache-2.0
"""Application files that many tests use; tests append further keys."""

CART = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: cart
"""
WAITING_CART = f"""\
{CART}\
  pipeline:
    stages:
      - {{name: WAIT, with: {{duration: 10ms}}}}
"""
