# SPDX-License-Identifier: Apache-2.0
"""The beginning of a script that installs a tool: downloads it, from a mirror if piped has one."""

_CURL = "curl -fsSL --proto =https --proto-redir =https -o"


def fetch_script(url: str, checksums: str) -> str:
    """Returns lines of sh that leave the files `download` and `checksums` in the TmpDir.

    If neither the mirror nor the publisher has them, the last line says why, for both of them.
    """
    mirror = "$PIPECD_TOOL_MIRROR/{{ .Name }}/{{ .Version }}"
    copies = " ".join(f'"{mirror}/{text.rpartition("/")[2]}"' for text in (url, checksums))
    return f"""set -eu
cd "{{{{ .TmpDir }}}}"
fetch() {{ {_CURL} download "$1" && {_CURL} checksums "$2"; }}
first() {{ printf '%s\\n' "$1" | head -n 1; }}
why=
if [ -z "${{PIPECD_TOOL_MIRROR:-}}" ] || ! why=$(fetch {copies} 2>&1); then
  code=0
  error=$(fetch "{url}" "{checksums}" 2>&1) || code=$?
  if [ "$code" != 0 ]; then
    echo "$(first "$error")${{why:+; the mirror $PIPECD_TOOL_MIRROR: $(first "$why")}}" >&2
    exit "$code"
  fi
fi"""
