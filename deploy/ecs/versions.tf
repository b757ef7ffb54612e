# SPDX-License-Identifier: Apache-2.0
# A control plane on Amazon ECS. docs/guide/ecs-control-plane.md describes it.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0, < 7.0"
    }
  }
}

provider "aws" {
  region = var.region
  default_tags {
    tags = { Project = var.name }
  }
}
