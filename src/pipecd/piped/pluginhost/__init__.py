# SPDX-License-Identifier: Apache-2.0
"""One plugin interface, two transports; and the service that plugins call back."""
