# SPDX-License-Identifier: Apache-2.0
"""From the directory of an application to its manifests: plain files, Kustomize or Helm."""
