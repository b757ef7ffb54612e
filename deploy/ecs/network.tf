# SPDX-License-Identifier: Apache-2.0
resource "aws_security_group" "balancer" {
  name   = "${var.name}-balancer"
  vpc_id = var.vpc_id

  ingress {
    from_port   = 443
    to_port     = 443
    protocol    = "tcp"
    cidr_blocks = var.allowed_cidr_blocks
  }

  egress {
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_security_group" "server" {
  name   = "${var.name}-server"
  vpc_id = var.vpc_id

  ingress {
    from_port       = 9090
    to_port         = 9090
    protocol        = "tcp"
    security_groups = [aws_security_group.balancer.id]
  }

  egress {
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

# Nothing reaches ops: operators forward its port through ECS Exec.
resource "aws_security_group" "ops" {
  name   = "${var.name}-ops"
  vpc_id = var.vpc_id

  egress {
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_security_group" "stores" {
  name   = "${var.name}-stores"
  vpc_id = var.vpc_id

  dynamic "ingress" {
    for_each = [3306, 6379]
    content {
      from_port       = ingress.value
      to_port         = ingress.value
      protocol        = "tcp"
      security_groups = [aws_security_group.server.id, aws_security_group.ops.id]
    }
  }
}

resource "aws_lb" "this" {
  name               = var.name
  load_balancer_type = "application"
  security_groups    = [aws_security_group.balancer.id]
  subnets            = var.public_subnet_ids
  # Pages and pipeds hold streams open; pings of pipeds keep them alive.
  idle_timeout = 600
}

# One port of the server speaks HTTP and gRPC; a target group speaks one of them.
resource "aws_lb_target_group" "http" {
  name                 = "${var.name}-http"
  port                 = 9090
  protocol             = "HTTP"
  target_type          = "ip"
  vpc_id               = var.vpc_id
  deregistration_delay = 30

  health_check {
    path    = "/"
    matcher = "200-399"
  }
}

resource "aws_lb_target_group" "grpc" {
  name                 = "${var.name}-grpc"
  port                 = 9090
  protocol             = "HTTP"
  protocol_version     = "GRPC"
  target_type          = "ip"
  vpc_id               = var.vpc_id
  deregistration_delay = 30

  health_check {
    # Any answer of a gRPC server will do.
    matcher = "0-99"
  }
}

resource "aws_lb_listener" "https" {
  load_balancer_arn = aws_lb.this.arn
  port              = 443
  protocol          = "HTTPS"
  ssl_policy        = "ELBSecurityPolicy-TLS13-1-2-2021-06"
  certificate_arn   = var.certificate_arn

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.http.arn
  }
}

# Calls of pipeds and pipectl; those of pages are gRPC-Web, which is HTTP.
resource "aws_lb_listener_rule" "grpc" {
  listener_arn = aws_lb_listener.https.arn
  priority     = 10

  action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.grpc.arn
  }

  condition {
    path_pattern {
      values = [
        "/grpc.service.pipedservice.PipedService/*",
        "/grpc.service.apiservice.APIService/*",
        "/pipe.api.service.pipedservice.PipedService/*",
        "/pipe.api.service.apiservice.APIService/*",
        "/pipecd.*",
      ]
    }
  }
}

# Traces of pipeds; a rule has at most five patterns.
resource "aws_lb_listener_rule" "traces" {
  listener_arn = aws_lb_listener.https.arn
  priority     = 11

  action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.grpc.arn
  }

  condition {
    path_pattern {
      values = ["/opentelemetry.proto.collector.trace.v1.TraceService/*"]
    }
  }
}
