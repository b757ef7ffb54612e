# SPDX-License-Identifier: Apache-2.0
"""Files of an application that many tests need; what else it should have can be added below."""

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
