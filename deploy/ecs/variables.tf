# SPDX-License-Identifier: Apache-2.0
variable "region" {
  description = "The region, such as ap-northeast-1."
  type        = string
}

variable "name" {
  description = "The beginning of the names of all resources."
  type        = string
  default     = "pipecd"
}

variable "domain" {
  description = "The host of the console and the API, such as pipecd.example.com; point it to the load balancer."
  type        = string
}

variable "certificate_arn" {
  description = "The certificate of the domain, in AWS Certificate Manager."
  type        = string
}

variable "vpc_id" {
  description = "The VPC that exists."
  type        = string
}

variable "public_subnet_ids" {
  description = "The subnets of the load balancer, in two zones or more."
  type        = list(string)
}

variable "private_subnet_ids" {
  description = "The subnets of tasks, database and cache, with a way to the internet or to VPC endpoints."
  type        = list(string)
}

variable "allowed_cidr_blocks" {
  description = "Who reaches the load balancer."
  type        = list(string)
  default     = ["0.0.0.0/0"]
}

variable "image" {
  description = "The image pipecd-server in your registry, such as 123456789012.dkr.ecr.ap-northeast-1.amazonaws.com/pipecd-server:v0.1.0."
  type        = string
}

variable "server_count" {
  description = "How many servers run."
  type        = number
  default     = 2
}

variable "cpu" {
  description = "The CPU units of a task."
  type        = number
  default     = 512
}

variable "memory" {
  description = "The memory of a task in MiB."
  type        = number
  default     = 1024
}

variable "database_instance_class" {
  description = "The size of the MySQL server."
  type        = string
  default     = "db.t4g.small"
}

variable "cache_node_type" {
  description = "The size of the Redis."
  type        = string
  default     = "cache.t4g.micro"
}

variable "bucket" {
  description = "The name of the S3 bucket for logs of deployments; it must be unique in the world."
  type        = string
}

variable "first_project" {
  description = "The project to create if there is none; its password is a secret of the same module."
  type        = string
  default     = "default"
}
