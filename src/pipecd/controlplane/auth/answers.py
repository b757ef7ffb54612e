# SPDX-License-Identifier: Apache-2.0
"""What browsers are told not to do with our answers."""

# For programs; scripts of a page get no further than its own site, as no answer invites others.
PRIVATE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
# For people; how long a page may be kept, and what it may load, is told by who makes it.
PAGE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
