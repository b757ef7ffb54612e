# SPDX-License-Identifier: Apache-2.0
output "load_balancer" {
  description = "Where the domain must point to."
  value       = aws_lb.this.dns_name
}

output "secrets" {
  description = "The secrets to fill before the first start."
  value = {
    encryption_key       = aws_secretsmanager_secret.encryption_key.name
    state_key            = aws_secretsmanager_secret.state_key.name
    first_admin_password = aws_secretsmanager_secret.first_admin_password.name
  }
}

output "cluster" {
  value = aws_ecs_cluster.this.name
}
