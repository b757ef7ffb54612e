# SPDX-License-Identifier: Apache-2.0
locals {
  database_secret = aws_db_instance.this.master_user_secret[0].secret_arn
  # Files of the configuration are written by the containers at their start.
  control_plane_config = templatefile("${path.module}/control-plane.yaml.tftpl", {
    address  = "https://${var.domain}"
    database = aws_db_instance.this.endpoint
    bucket   = aws_s3_bucket.this.id
    region   = var.region
  })
  task = {
    name                        = var.name
    image                       = var.image
    region                      = var.region
    log_group                   = aws_cloudwatch_log_group.this.name
    control_plane_config        = base64encode(local.control_plane_config)
    cache_address               = "${aws_elasticache_cluster.this.cache_nodes[0].address}:6379"
    database_secret             = local.database_secret
    encryption_key_secret       = aws_secretsmanager_secret.encryption_key.arn
    state_key_secret            = aws_secretsmanager_secret.state_key.arn
    first_admin_password_secret = aws_secretsmanager_secret.first_admin_password.arn
    first_project               = var.first_project
  }
}

resource "aws_ecs_cluster" "this" {
  name = var.name
}

resource "aws_cloudwatch_log_group" "this" {
  name              = "/ecs/${var.name}"
  retention_in_days = 30
}

data "aws_iam_policy_document" "tasks" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["ecs-tasks.amazonaws.com"]
    }
  }
}

# What ECS itself needs to start tasks.
resource "aws_iam_role" "execution" {
  name               = "${var.name}-execution"
  assume_role_policy = data.aws_iam_policy_document.tasks.json
}

resource "aws_iam_role_policy_attachment" "execution" {
  role       = aws_iam_role.execution.name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy"
}

resource "aws_iam_role_policy" "secrets" {
  name = "secrets"
  role = aws_iam_role.execution.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect = "Allow"
      Action = ["secretsmanager:GetSecretValue"]
      Resource = [
        local.database_secret,
        aws_secretsmanager_secret.encryption_key.arn,
        aws_secretsmanager_secret.state_key.arn,
        aws_secretsmanager_secret.first_admin_password.arn,
      ]
    }]
  })
}

# What the programs need.
resource "aws_iam_role" "task" {
  name               = "${var.name}-task"
  assume_role_policy = data.aws_iam_policy_document.tasks.json
}

resource "aws_iam_role_policy" "task" {
  name = "pipecd"
  role = aws_iam_role.task.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
        Resource = ["${aws_s3_bucket.this.arn}/*"]
      },
      {
        Effect   = "Allow"
        Action   = ["s3:ListBucket"]
        Resource = [aws_s3_bucket.this.arn]
      },
      {
        # ECS Exec, through which operators reach the pages of ops.
        Effect = "Allow"
        Action = [
          "ssmmessages:CreateControlChannel",
          "ssmmessages:CreateDataChannel",
          "ssmmessages:OpenControlChannel",
          "ssmmessages:OpenDataChannel",
        ]
        Resource = ["*"]
      },
    ]
  })
}

resource "aws_ecs_task_definition" "this" {
  for_each                 = toset(["server", "ops"])
  family                   = "${var.name}-${each.key}"
  requires_compatibilities = ["FARGATE"]
  network_mode             = "awsvpc"
  cpu                      = var.cpu
  memory                   = var.memory
  execution_role_arn       = aws_iam_role.execution.arn
  task_role_arn            = aws_iam_role.task.arn
  container_definitions    = templatefile("${path.module}/task-definitions/${each.key}.json.tftpl", local.task)

  volume {
    name = "home"
  }

  volume {
    name = "tmp"
  }
}

resource "aws_ecs_service" "server" {
  name            = "server"
  cluster         = aws_ecs_cluster.this.id
  task_definition = aws_ecs_task_definition.this["server"].arn
  desired_count   = var.server_count
  launch_type     = "FARGATE"
  # The database makes its tables at the first start.
  health_check_grace_period_seconds = 120

  network_configuration {
    subnets         = var.private_subnet_ids
    security_groups = [aws_security_group.server.id]
  }

  load_balancer {
    target_group_arn = aws_lb_target_group.http.arn
    container_name   = "server"
    container_port   = 9090
  }

  load_balancer {
    target_group_arn = aws_lb_target_group.grpc.arn
    container_name   = "server"
    container_port   = 9090
  }

  deployment_circuit_breaker {
    enable   = true
    rollback = true
  }

  depends_on = [aws_lb_listener.https, aws_lb_listener_rule.grpc, aws_lb_listener_rule.traces]
}

# One at a time: the jobs of two would do the same work.
resource "aws_ecs_service" "ops" {
  name                               = "ops"
  cluster                            = aws_ecs_cluster.this.id
  task_definition                    = aws_ecs_task_definition.this["ops"].arn
  desired_count                      = 1
  launch_type                        = "FARGATE"
  deployment_minimum_healthy_percent = 0
  deployment_maximum_percent         = 100
  enable_execute_command             = true

  network_configuration {
    subnets         = var.private_subnet_ids
    security_groups = [aws_security_group.ops.id]
  }
}
