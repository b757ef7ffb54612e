# SPDX-License-Identifier: Apache-2.0
"""Everything that reads foreign input within a process, with samples to mutate.

A reader returns a value or raises a PipecdError (a few raise another error by contract). Anything
else, too much time and too much memory are findings.
"""

import asyncio
import gzip
import io
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fuzz.mutation import Mutator
from pipecd.config.catalog import load_catalog
from pipecd.config.envelope import Generation
from pipecd.config.read import (
    read_application,
    read_control_plane,
    read_event_watcher,
    read_file,
    read_startable_piped,
)
from pipecd.config.yaml_tree import YamlMistake, read_yaml
from pipecd.controlplane.console.ansi import ansi_html
from pipecd.controlplane.console.diff_view import drift_view, preview_view
from pipecd.controlplane.console.markdown import description_html, render_document
from pipecd.controlplane.console.stage_log import log_lines, parse_cursor
from pipecd.controlplane.datastore.cursor import decode_cursor
from pipecd.controlplane.webhooks.payload import parse_payload
from pipecd.git.tree import TreeEntry, parse_tree
from pipecd.git.tree_limits import TreeLimits, TreeSizes
from pipecd.git.validate import validate_branch, validate_hash, validate_path
from pipecd.gotemplate.template import FUNCTIONS, render
from pipecd.model.errors import PipecdError
from pipecd.model.giturl import commit_url, page_url, remote_identity
from pipecd.piped.eventwatcher.replacement import FieldFormat, replaced
from pipecd.plugins.kubernetes.kubeconfig import read_kubeconfig
from pipecd.plugins.kubernetes.manifest import read_manifests
from pipecd.plugins.kubernetes.tools import ToolDownload
from pipecd.plugins.process.http_chunks import ChunkReader
from pipecd.plugins.process.http_head import (
    CHUNKED,
    Malformed,
    Sender,
    parse_request,
    parse_response,
)
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.secrets import hybrid, session
from pipecd.secrets.state import resume_sign_in
from pipecd.wire.credentials import parse_api_key, parse_piped_token, session_cookie
from pipecd.wire.frames import only_message
from pipecd.wire.oci import INDEX, MANIFEST, Document, Platform, parse_reference
from pipecd.wire.registry import login_of, parse_challenge

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = b"0123456789abcdef0123456789abcdef"

_FENCE = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Reader:
    """A function over foreign bytes; `refusals` are errors that it may raise besides our own."""

    name: str
    samples: Sequence[bytes]
    read: Callable[[bytes], object]
    words: Sequence[str] = ()
    refusals: tuple[type[Exception], ...] = ()

    def input(self, seed: str, number: int) -> bytes:
        """Returns the input of a number, which does not depend on the inputs before it."""
        return Mutator(f"{seed}/{self.name}/{number}", self.words).mutate(self.samples)


def text_of(content: bytes) -> str:
    return content.decode("utf-8", "replace")


@cache
def guide_samples(kind: str) -> tuple[bytes, ...]:
    """The YAML samples of the guide that have this `kind`."""
    found = [
        sample
        for page in sorted((ROOT / "docs" / "guide").glob("*.md"))
        for sample in _FENCE.findall(page.read_text())
        if re.search(rf"^kind: *({kind})\b", sample, re.MULTILINE)
    ]
    return tuple(sample.encode() for sample in found)


@cache
def words_of(samples: Sequence[bytes]) -> tuple[str, ...]:
    """The words of samples, which mutations put elsewhere."""
    return tuple(sorted({word for s in samples for word in re.findall(r"[\w./-]+", text_of(s))}))


V0_KINDS = "KubernetesApp|TerraformApp|CloudRunApp|LambdaApp|ECSApp"
APPLICATIONS = guide_samples(f"Application|{V0_KINDS}")
PIPEDS, CONTROL_PLANES = guide_samples("Piped"), guide_samples("ControlPlane")
EVENT_WATCHERS = guide_samples("EventWatcher")
DATA: dict[str, Any] = {
    "encryptedSecrets": {"password": 'p"ss', "with-dash": "d"},
    "attachment": {"config": "a: 1\nb: 2"},
    "Value": "v1", "n": 3, "list": ["a", "b"], "map": {"z": 1, "a": 2}, "none": None,
}  # fmt: skip
TEMPLATES = (
    b"x: {{ .encryptedSecrets.password }}",
    b'{{ index .encryptedSecrets "with-dash" | b64enc | quote }}',
    b"{{ range $i, $v := .list }}{{ $i }}={{ $v }}{{ else }}none{{ end }}",
    b"{{ if and .n (eq .n 3) }}y{{ else if not .none }}n{{ end }}",
    b'{{ define "t" }}[{{ . }}]{{ end }}{{ template "t" .map }}',
    b'{{ with $x := .map }}{{ $x.z | printf "%5.2f %q %v" 1.5 "a" }}{{ end -}}',
    b'{{ regexReplaceAll "(a+)" .Value "${1}" | trunc 3 | indent 2 }}{{ toJson .map }}',
    b'{{ dict "a" 1 "b" (list 1 2 3) | toPrettyJson }}{{ date "2006-01-02" now }}',
)
MANIFESTS = (
    b"apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\n  labels: {app: web}\nspec:\n  replicas: 2\n"
    b"  template:\n    spec:\n      containers:\n      - name: web\n        image: web:v1\n---\n"
    b"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Secret\n  metadata: {name: s}\n  data: {a: YQ==}\n",
    b'{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}}',
)
KUBECONFIGS = (
    b"apiVersion: v1\nkind: Config\ncurrent-context: dev\ncontexts:\n- name: dev\n  context: {cluster: c, user: u, namespace: n}\n"
    b"clusters:\n- name: c\n  cluster:\n    server: https://10.0.0.1:6443\n    certificate-authority-data: YQ==\n"
    b"    tls-server-name: api\n    proxy-url: http://proxy:3128\nusers:\n- name: u\n  user:\n    token: t\n"
    b"    client-certificate-data: YQ==\n    exec: {command: ./login, args: [a, b], env: [{name: A, value: b}], apiVersion: v1}\n",
)
LOGS = (
    b"plain\n\x1b[31mred\x1b[0m \x1b[1;38;5;196mbold\x1b[39;49m \x1b[48;2;1;2;3mrgb\x1b[m\r\n",
    b"50%\r100%\x1b[K\x1b[2K\x1b[1A\x1b[10D\x1b]8;;https://x\x07link\x1b]8;;\x1b\\ <script>\x08\x08",
)
REMOTES = (
    b"git@github.com:org/repo.git", b"https://user:pass@gitlab.com:8443/group/sub/repo.git/", b"ssh://git@ssh.github.com:443/o/r",
    b"https://host.example/scm/proj/repo", b"file:///srv/git/repo", b"/srv/git/repo", b"ssh://[::1]:22/o/r", b"refs/heads/main",
)  # fmt: skip
DELIVERIES = (
    b'{"ref": "refs/heads/main", "repository": {"clone_url": "https://h/o/r.git", "ssh_url": "git@h:o/r.git", "html_url": "https://h/o/r"}}',
    b'{"object_kind": "push", "ref": "refs/heads/main", "project": {"git_http_url": "https://h/o/r.git", "git_ssh_url": "git@h:o/r.git"}}',
    b'{"push": {"changes": [{"new": {"type": "branch", "name": "main"}}]}, "repository": {"links": {"clone": [{"href": "https://h/o/r"}]}}}',
    b'{"repository": ["git@h:o/r.git"], "branch": "main"}', b"payload=%7B%22repository%22%3A%22x%22%7D",
)  # fmt: skip
OCI_DOCUMENTS = (
    b'{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [{"mediaType": "m", "digest": "sha256:00", '
    b'"size": 3, "platform": {"os": "linux", "architecture": "amd64"}}]}',
    b'{"layers": [{"mediaType": "application/vnd.pipecd.piped.plugin", "digest": "sha256:00", "size": 3}]}',
    b'{"auths": {"https://ghcr.io/v1": {"auth": "YTpi"}, "ghcr.io": {"username": "u", "password": "p"}}}',
)
REFERENCES = (
    b"oci://ghcr.io/org/plugin:v1@sha256:" + b"0" * 64,
    b"localhost:5000/a/b",
    b'Bearer realm="https://x/y",service="s"',
)
FIELDS = {
    FieldFormat.YAML: (b"a:\n  b: [1, {c: v}]\n  d: |\n    text\n  e: 'q'\n---\nx: &k y\nz: *k\n", "$.a.b[1].c"),
    FieldFormat.JSON: (b'{"a": {"b": [1, {"c": "v"}], "d": null}}', "$.a.b[1].c"),
    FieldFormat.HCL: (b'variable "image" {\n  default = "v1" # c\n  list = [1, "a${b}", { k = 2 }]\n}\n', "$.variable.image.default"),
    FieldFormat.REGEX: (b"image: repo/web:v1.2.3\n", r"repo/web:(v\d+\.\d+\.\d+)"),
}  # fmt: skip
SESSION = session.sign(
    session.Session("ann", "shop", ("Admin",), "", 1767322000, 1767400000, "sso"), KEY
)
TOKENS = (
    SESSION.encode(), b"PIPED-TOKEN shop,piped,key", b"API-KEY id.key", b"a=b; token=" + SESSION.encode(), b"eyJJZCI6IngifQ==", b"7:12",
    b"1767322000000:abcdef", b"1-2",
)  # fmt: skip


def read_addresses(content: bytes) -> None:
    text = text_of(content)
    remote_identity(text)
    for read in (
        page_url,
        partial(commit_url, commit="c0ffee"),
        validate_branch,
        validate_hash,
        validate_path,
    ):
        tolerant(read, text)


def read_log(content: bytes) -> None:
    text = text_of(content)
    ansi_html(text)
    log_lines([LogBlock(index=1, log=text), LogBlock(index=2, log=text[::-1])], parse_cursor("0:0"))


def read_delivery(content: bytes) -> None:
    for name, event in (
        ("x-github-event", "push"), ("x-gitlab-event", "Push Hook"), ("x-event-key", "repo:push"),
        ("x-event-key", "repo:refs_changed"), ("x-gitea-event", "push"), ("content-type", "application/x-www-form-urlencoded"), ("x", "y"),
    ):  # fmt: skip
        tolerant(partial(parse_payload, {name: event}), content)


def read_tokens(content: bytes) -> None:
    text = text_of(content)
    metadata = [("authorization", text), ("cookie", text)]
    for read in (
        lambda _: session.verify(text, KEY, NOW),
        lambda _: resume_sign_in(text, "key", cookie=text, bound_to="shop", now=NOW),
        parse_api_key, parse_piped_token, session_cookie,
        lambda _: decode_cursor(text, "UpdatedAt"), lambda _: parse_cursor(text),
    ):  # fmt: skip
        tolerant(read, metadata)
    tolerant(hybrid.read, text)
    tolerant(only_message, content)


def read_registry(content: bytes) -> None:
    text = text_of(content)
    for media_type in (INDEX, MANIFEST, text[:50]):
        document = tolerant(lambda of: Document(content, of, source="registry"), media_type)
        if document is not None and document.is_index:
            tolerant(document.for_platform, Platform("linux", "amd64"))
        if document is not None:
            tolerant(document.layers, "application/vnd.pipecd.piped.plugin")
    with suppress(ValueError):
        login_of(content, "ghcr.io")
    parse_challenge(text)
    tolerant(parse_reference, text)


def read_replacement(format_: FieldFormat, content: bytes) -> None:
    """The first line of the input is the path, as a branch may set both it and the file."""
    path, _, text = content.partition(b"\n")
    value = "v2" if len(content) % 2 else 'a "b" #\n\u00e9'
    replaced(text.decode(errors="replace"), format_.value, text_of(path), value)


def tar(*members: tuple[str, bytes, bytes]) -> bytes:
    """An archive of members with name, type and content; the content of a link is its target."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, type_, content in members:
            information = tarfile.TarInfo(name)
            information.type = type_
            if information.isreg():
                information.size = len(content)
            else:
                information.linkname = content.decode()
            archive.addfile(information, io.BytesIO(content))
    return written.getvalue()


MEMBER = "linux-amd64/helm"
ARCHIVES = (
    tar(
        ("linux-amd64/README", tarfile.REGTYPE, b"text"), (MEMBER, tarfile.REGTYPE, b"#!/bin/sh\n")
    ),
    tar((MEMBER, tarfile.SYMTYPE, b"../../secret"), (MEMBER, tarfile.REGTYPE, b"#!/bin/sh\n")),
    tar((MEMBER, tarfile.LNKTYPE, b"../secret"), ("../secret", tarfile.REGTYPE, b"planted")),
)


def read_archive(content: bytes) -> None:
    """Unpacks a program as the installation of a tool does; nothing else may appear or change."""
    unpack = "\n".join(ToolDownload("v", "u", "c", MEMBER).script().splitlines()[-2:])
    with tempfile.TemporaryDirectory() as directory:
        secret, work = Path(directory) / "secret", Path(directory) / "work"
        work.mkdir()
        secret.write_text("secret")
        (work / "download").write_bytes(gzip.compress(content, 1))
        script = f"set -eu\n{unpack.replace('{{ .OutPath }}', 'out')}"
        subprocess.run(["sh", "-c", script], cwd=work, timeout=60, capture_output=True, check=False)
        assert secret.read_text() == "secret"
        files = [path for path in Path(directory).rglob("*") if path != work]
        assert {path.name for path in files} <= {"secret", "download", "out"}, files
        assert all(path.is_file() and not path.is_symlink() for path in files), files


HTTP_MESSAGES = (
    b"GET /a?b=c HTTP/1.1\r\nHost: web.example\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
    b"X-Forwarded-For: 192.0.2.1\r\n\r\n",
    b"POST http://web.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nT: 1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nKeep-Alive: timeout=5\r\n\r\nhello",
    b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
)


def read_http(content: bytes) -> None:
    """Reads a message as the router does; what it forwards must be free of ambiguities."""
    head, empty_line, body = content.partition(b"\r\n\r\n")
    if content.startswith(b"HTTP/"):
        response = parse_response(head + empty_line, b"GET")
        length, forwarded = response.length, response.head
    else:
        sender = Sender(b"192.0.2.7", is_trusted=len(content) % 2 == 0, authority=b"localhost")
        request = parse_request(head + empty_line, sender)
        length, forwarded = request.length, request.head
        names = [line.partition(b":")[0].lower() for line in forwarded.split(b"\r\n")[1:]]
        assert names.count(b"host") == 1, forwarded
        assert names.count(b"content-length") + (length == CHUNKED) <= 1, forwarded
        assert names.count(b"transfer-encoding") == (length == CHUNKED), forwarded
    assert forwarded.count(b"\n") == forwarded.count(b"\r\n") == forwarded.count(b"\r"), forwarded
    if length == CHUNKED:
        ChunkReader().feed(body)


DIFFS = (
    b'# 1. name="web", kind="Deployment", namespace="a", apiVersion="apps/v1"\n\n  spec:\n    #spec.replicas\n-   replicas: 5\n'
    b'+   replicas: 2\n\n... (omitted 2 other changed manifests)\n- 2. name="old", kind="ConfigMap", namespace="", apiVersion="v1"\n',
    b'  # module.cdn["eu"].aws_x.y will be updated in-place\n    resource "aws_x" "y" {\n        id   = "1"\n~       name = "a" -> "b"\n'
    b"    }\n  # aws_z.w must be replaced\nPlan: 2 to add, 1 to change, 1 to destroy.\n",
    b"eu: Diff between the state in Git and in the cloud:\n\n--- Actual\n+++ Expected\n\n  ServiceDefinition:\n+   a: 1\n",
    b"--- a/x.yaml\n+++ a/x.yaml\n@@ -1,2 +1,2 @@\n same\n-old\n+new\n",
    b"web does not run\nworker has another image\n",
)
MARKDOWN = (
    b"# Web\n\nA *shop* with **two** [links](https://x/y) and ![an image](x.png).\n\n- a\n  - b\n1. c\n\n> quoted `code`\n\n```yaml\na: b\n```\n",
    b"| a | b |\n|---|:-:|\n| 1 | <b>2</b> |\n\n[ref]: https://x 'title'\n[ref] <https://x> &amp; \\* _a_ __b__ ~~c~~\n\nTitle\n=====\n***\n",
)
HASH_SIZE = 20
TREES = (
    b"100644 a.yaml\0" + bytes(range(20)) + b"40000 dir\0" + bytes(20) + b"120000 link\0" + bytes(20),
    b"160000 module\0" + b"\xff" * 20 + b"100755 run\0" + bytes(20),
)  # fmt: skip


def read_diff(content: bytes) -> None:
    for view in (drift_view(text_of(content)), preview_view(text_of(content))):
        for block in (block for section in view.sections for block in section.blocks):
            assert len(block.pairs) <= len(block.lines)


class _HarmlessHtml(HTMLParser):
    """Fails for what a browser would run, and for links that are neither web nor page addresses."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "style", "img", "iframe", "object", "embed", "form"}, tag
        for name, value in attrs:
            assert not name.startswith("on"), name
            if name in {"href", "src"}:
                assert re.match(r"https?://|/|#|$", value or "", re.IGNORECASE), value


def check_html(html: str) -> None:
    parser = _HarmlessHtml()
    parser.feed(html)
    parser.close()


def read_markdown(content: bytes) -> None:
    for html in (
        description_html(text_of(content)),
        render_document(
            text_of(content[:20_000]), lambda url: url if url.startswith("/") else ""
        ).html,
    ):
        check_html(html)


def read_tree(content: bytes) -> None:
    """Reads a tree, and measures trees of trees with as many entries as the bytes say."""
    tolerant(lambda tree: list(parse_tree(tree, HASH_SIZE)), content)
    widths = [byte % 40 for byte in content[:400]] or [0]

    async def read_trees(ids: Sequence[str]) -> list[tuple[TreeEntry, ...]]:
        return [tuple(entries_at(int(id_, 16))) for id_ in ids]

    async def read_sizes(ids: Sequence[str]) -> list[int]:
        return [int(id_[:4], 16) for id_ in ids]

    def entries_at(index: int) -> list[TreeEntry]:
        below = widths[index] if index + 1 < len(widths) else 0
        subtrees = [
            f"{index + 1 + n % 3:040x}" for n in range(below) if index + 1 + n % 3 < len(widths)
        ]
        return [TreeEntry(f"d{n}", 0o40000, id_) for n, id_ in enumerate(subtrees)]

    sizes = TreeSizes(read_trees, read_sizes, TreeLimits(entries=10_000))
    root = TreeEntry("", 0o40000, f"{0:040x}")
    tolerant(lambda entry: asyncio.run(sizes.check([entry], what="the commit")), root)


def tolerant(read: Callable[[Any], Any], argument: Any) -> Any:
    """The value, or None if the reader refuses it with an error of ours."""
    try:
        return read(argument)
    except PipecdError:
        return None


def readers() -> dict[str, Reader]:
    """All readers by name."""
    catalog = load_catalog()
    yaml_samples = (*APPLICATIONS, *PIPEDS, *MANIFESTS)
    every_kind = (*APPLICATIONS, *PIPEDS, *CONTROL_PLANES, *EVENT_WATCHERS)

    def application(content: bytes) -> None:
        for reader in (None, Generation.V0, Generation.V1):
            read = partial(read_application, file="app.pipecd.yaml", catalog=catalog, reader=reader)
            tolerant(read, content)

    def config(content: bytes) -> None:
        tolerant(lambda text: read_file(text, file="x.yaml", catalog=catalog), content)
        tolerant(lambda text: read_event_watcher(text, file="x.yaml"), content)

    made = (
        Reader("application configuration", APPLICATIONS, application, words_of(APPLICATIONS)),
        Reader("piped configuration", PIPEDS, lambda c: read_startable_piped(c, file="piped.yaml", catalog=catalog), words_of(PIPEDS)),
        Reader("control plane configuration", CONTROL_PLANES, lambda c: read_control_plane(c, file="cp.yaml"), words_of(CONTROL_PLANES)),
        Reader("any configuration", every_kind, config, words_of(every_kind)),
        Reader("YAML", yaml_samples, read_yaml, words_of(yaml_samples), (YamlMistake,)),
        Reader("Go templates", TEMPLATES, lambda c: render(text_of(c), DATA, name="t"), (*words_of(TEMPLATES), *FUNCTIONS)),
        Reader("terminal output", LOGS, read_log, ("\x1b[", "\x1b]", "\x1b[38;5;", "m", ";" * 50, "\r\r\r")),
        Reader("diffs", DIFFS, read_diff, (*words_of(DIFFS), "~ ", " = ", " -> ", "  # ", "---", "+++", "  ")),
        Reader("Markdown", MARKDOWN, read_markdown, ("[", "](", "![", "<", "`", "*", "_", "> ", "- ", "|", "javascript:alert(1)", "\n\n", "&#")),
        Reader("Git trees", TREES, read_tree, ("40000 ", "100644 ", "\0", "160000 ")),
        Reader("Git URLs and refs", REMOTES, read_addresses, words_of(REMOTES)),
        Reader("kubeconfigs", KUBECONFIGS, lambda c: read_kubeconfig(text_of(c), file="/nonexistent/config"), words_of(KUBECONFIGS)),
        Reader("manifests", MANIFESTS, lambda c: read_manifests(text_of(c), file="m.yaml"), words_of(MANIFESTS)),
        Reader("webhook payloads", DELIVERIES, read_delivery, words_of(DELIVERIES)),
        Reader("tokens and cursors", TOKENS, read_tokens, ("PIPED-TOKEN ", "API-KEY ", "token=", ".", ",", ":")),
        Reader("archives", ARCHIVES, read_archive, (MEMBER, "../secret", "ustar", "././@LongLink")),
        Reader("HTTP messages", HTTP_MESSAGES, read_http, ("\r\n", "\n", "Content-Length: 3", "Transfer-Encoding: chunked", " :", "\r\n "), (Malformed,)),
        Reader("registry documents", (*OCI_DOCUMENTS, *REFERENCES), read_registry, words_of(OCI_DOCUMENTS)),
        *(
            Reader(f"{format_.value} replacements", (path.encode() + b"\n" + sample,), partial(read_replacement, format_), words_of((sample, path.encode())))
            for format_, (sample, path) in FIELDS.items()
        ),
    )  # fmt: skip
    return {reader.name: reader for reader in made}
