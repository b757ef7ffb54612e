# SPDX-License-Identifier: Apache-2.0
"""Security headers of HTTP responses."""

# For API responses. There are no CORS headers, so scripts of other sites cannot read them.
NO_STORE_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
# For HTML pages; each page sets its own Cache-Control and Content-Security-Policy.
PAGE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
