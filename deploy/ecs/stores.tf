# SPDX-License-Identifier: Apache-2.0
resource "aws_db_subnet_group" "this" {
  name       = var.name
  subnet_ids = var.private_subnet_ids
}

resource "aws_db_instance" "this" {
  identifier                  = var.name
  engine                      = "mysql"
  engine_version              = "8.0"
  instance_class              = var.database_instance_class
  allocated_storage           = 20
  max_allocated_storage       = 200
  storage_encrypted           = true
  db_name                     = "pipecd"
  username                    = "pipecd"
  manage_master_user_password = true
  db_subnet_group_name        = aws_db_subnet_group.this.name
  vpc_security_group_ids      = [aws_security_group.stores.id]
  backup_retention_period     = 7
  deletion_protection         = true
  skip_final_snapshot         = false
  final_snapshot_identifier   = "${var.name}-final"
}

resource "aws_elasticache_subnet_group" "this" {
  name       = var.name
  subnet_ids = var.private_subnet_ids
}

resource "aws_elasticache_cluster" "this" {
  cluster_id         = var.name
  engine             = "redis"
  node_type          = var.cache_node_type
  num_cache_nodes    = 1
  subnet_group_name  = aws_elasticache_subnet_group.this.name
  security_group_ids = [aws_security_group.stores.id]
}

resource "aws_s3_bucket" "this" {
  bucket = var.bucket
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket                  = aws_s3_bucket.this.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id
  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

# The values of secrets are not in the state of Terraform: put them in by hand, as the guide says.
resource "aws_secretsmanager_secret" "encryption_key" {
  name        = "${var.name}/encryption-key"
  description = "The key of sessions and stored secrets of PipeCD"
}

resource "aws_secretsmanager_secret" "state_key" {
  name        = "${var.name}/state-key"
  description = "The key that signs sign-ins of PipeCD"
}

resource "aws_secretsmanager_secret" "first_admin_password" {
  name        = "${var.name}/first-admin-password"
  description = "The password of the administrator of the first project of PipeCD"
}
