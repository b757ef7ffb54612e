# SPDX-License-Identifier: Apache-2.0
"""Results of platform plugins about what a commit changes, in the format of each."""

from pipecd.proto.model.planpreview_pb2 import PluginPlanPreviewResult

MANIFESTS = b"""\
--- Last Deploy
+++ Head Commit

- 1. name="old", kind="ConfigMap", namespace="shop", apiVersion="v1"

+ 2. name="web", kind="Service", namespace="shop", apiVersion="v1"

# 3. name="web", kind="Deployment", namespace="shop", apiVersion="apps/v1"

  spec:
    #spec.replicas
-   replicas: 5
+   replicas: 2

    template:
      spec:
        containers:
          - name: web
            #spec.template.spec.containers.0.image
-           image: registry.example/shop/web:v1.4.0
+           image: registry.example/shop/web:v1.5.0

"""
PLAN = b"""\
Terraform will perform the following actions:

  # aws_s3_bucket.assets will be created
  + resource "aws_s3_bucket" "assets" {
      + bucket = "shop-assets"
      + id     = (known after apply)
    }

  # aws_instance.web must be replaced
-/+ resource "aws_instance" "web" {
      ~ ami           = "ami-1" -> "ami-2" # forces replacement
        instance_type = "t3.small"
    }

Plan: 2 to add, 0 to change, 1 to destroy.
"""
TASK_DEFINITION = b"""\
--- taskdef (running)
+++ taskdef (target)
@@ -1,4 +1,4 @@
 containerDefinitions:
-- image: registry.example/shop/web:v1
+- image: registry.example/shop/web:v2
   memory: 128
 family: web
"""
FUNCTION = b"""\
--- Last Deploy
+++ Head Commit

  spec:
    #spec.memory
-   memory: 128
+   memory: 256

"""
FILES = """\
~ run.sh
+ conf/web.toml
replicas: 1 → 2
""".encode()


def kubernetes_result(target: str = "dev") -> PluginPlanPreviewResult:
    summary = b"1 added manifests, 1 changed manifests, 1 deleted manifests"
    return _result("kubernetes", target, MANIFESTS, summary)


def results_of_all_platforms() -> list[PluginPlanPreviewResult]:
    """One result of every platform plugin."""
    return [
        kubernetes_result(),
        _result("terraform", "network", PLAN, b"2 to add, 0 to change, 1 to destroy", "hcl"),
        _result("ecs", "tokyo", TASK_DEFINITION, b"task definition changed"),
        _result("lambda", "osaka", FUNCTION, b"1 change was detected"),
        _result("process", "here", FILES, b"2 files and 1 setting will change"),
    ]


def _result(
    plugin: str, target: str, details: bytes, summary: bytes, language: str = "diff"
) -> PluginPlanPreviewResult:
    return PluginPlanPreviewResult(
        plugin_name=plugin,
        deploy_target=target,
        plan_summary=summary,
        plan_details=details,
        diff_language=language,
    )
