#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes the plain manifests from the charts.
set -eu
cd "$(dirname "$0")"
for name in pipecd piped; do
    { echo "# Written by render.sh from ../helm/$name and $name-values.yaml."
      "${HELM:-helm}" template "$name" "../helm/$name" --namespace pipecd --values "$name-values.yaml"; } > "$name.yaml"
done
