# SPDX-License-Identifier: Apache-2.0
"""Object stores on loopback: S3 by moto, and the part of Google's JSON API that we speak."""

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

LATER = 1


class S3:
    """S3, MinIO and STS of moto, in a thread."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"

    def close(self) -> None:
        self._server.stop()


class Gcs:
    """Buckets in memory that speak Google's JSON API."""

    def __init__(self, *buckets: str) -> None:
        self.objects: dict[str, dict[str, tuple[bytes, str]]] = {name: {} for name in buckets}
        self.answers_with = 200
        self.page_size = 3
        store = self

        class Door(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                code, content = store.answer(self.command, self.path, body)
                if code == LATER:
                    # The content of a large object follows to this address.
                    self.send_response(200)
                    self.send_header("Location", f"{store.url}{content}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:
                """Keeps quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, Any]:
        if self.answers_with != 200:
            return self.answers_with, {"error": {"message": "as told"}}
        parts = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        found = re.fullmatch(
            r"/(upload/|download/)?storage/v1/b/([^/]+)(?:/o)?(?:/(.+))?", parts.path
        )
        if found is None or found[2] not in self.objects:
            return 404, {"error": {"message": "The specified bucket does not exist."}}
        bucket, name = self.objects[found[2]], unquote(found[3] or "")
        if found[1] == "upload/":
            return self._upload(bucket, body, query, parts.path)
        if not name:
            return self._list(bucket, query, found[2])
        wants_content = found[1] == "download/" or query.get("alt") == "media"
        return self._object(bucket, name, method, wants_content=wants_content)

    def _object(
        self, bucket: dict[str, tuple[bytes, str]], name: str, method: str, *, wants_content: bool
    ) -> tuple[int, Any]:
        if name not in bucket:
            return 404, {"error": {"message": f"No such object: {name}"}}
        if method == "DELETE":
            del bucket[name]
            return 204, b""
        return 200, bucket[name][0] if wants_content else {"name": name}

    def _upload(
        self, bucket: dict[str, tuple[bytes, str]], body: bytes, query: dict[str, str], path: str
    ) -> tuple[int, Any]:
        if "upload_id" in query:
            import google_crc32c

            bucket[query["upload_id"]] = (body, "")
            checksum = base64.b64encode(google_crc32c.Checksum(body).digest()).decode()
            return 200, {"name": query["upload_id"], "crc32c": checksum}
        if query["uploadType"] == "resumable":
            return LATER, f"{path}?upload_id={quote(json.loads(body)['name'], safe='')}"
        boundary = body.partition(b"\r\n")[0]
        _, about, media, _ = body.split(boundary)
        name = json.loads(about.partition(b"\r\n\r\n")[2])["name"]
        head, _, content = media.partition(b"\r\n\r\n")
        kind = head.decode().lower().partition("content-type:")[2].strip()
        bucket[name] = (content[:-2], kind)
        return 200, {"name": name}

    def _list(
        self, bucket: dict[str, tuple[bytes, str]], query: dict[str, str], name: str
    ) -> tuple[int, Any]:
        names = sorted(n for n in bucket if n.startswith(query.get("prefix", "")))
        start = int(query.get("pageToken", 0))
        page = names[start : start + self.page_size]
        answer: dict[str, Any] = {"items": [{"name": n} for n in page], "name": name}
        if start + self.page_size < len(names):
            answer["nextPageToken"] = str(start + self.page_size)
        return 200, answer
