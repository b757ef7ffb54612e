terraform {
  backend "local" {
    path = "/var/lib/shop/terraform.tfstate"
  }
}

variable "release" {}

resource "terraform_data" "shop" {
  input = var.release
}
