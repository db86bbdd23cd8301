"""An Iceberg REST catalog for tests, run as a process: it serves metadata files as they are and misbehaves on request.

    python rest_server.py STATE.json      prints its port; ends with its standard input

STATE.json is read again for every request:
    namespaces  [{"levels": [...], "properties": {...}}]
    tables      [{"levels": [...], "name": ..., "metadata": path of a metadata file, "location": text told for it}]
    views       [{"levels": [...], "name": ...}]
    page        entries a page (0: all at once)
    token       what a request must bear; /v1/oauth/tokens hands it out for `credential` (client:secret)
    faults      [[regular expression on the path, HTTP status or "hang" or "html" or "slow", after so many requests]]
    gone        {"a.t": n}: the table is not there any more once it was loaded n times
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

SEPARATOR = "\x1f"
COUNTS: Counter[str] = Counter()
VIEWS = [
    f"GET /v1/{{prefix}}/namespaces{rest}"
    for rest in ("", "/{namespace}", "/{namespace}/tables", "/{namespace}/tables/{table}", "/{namespace}/views")
]


class Catalog(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def answer(self, status: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def say(self, value: object) -> None:
        self.answer(200, json.dumps(value).encode())

    def refuse(self, status: int, kind: str, message: str) -> None:
        self.answer(status, json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode())

    def do_POST(self) -> None:
        state = json.loads(STATE.read_text())
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        given = {key: values[0] for key, values in parse_qs(body).items()}
        if f"{given.get('client_id')}:{given.get('client_secret')}" != state.get("credential"):
            told = f"the client {given.get('client_id')} with {given.get('client_secret')} is unknown"
            refused = {"error": "invalid_client", "error_description": told}
            self.answer(401, json.dumps(refused).encode())
            return
        self.say({"access_token": state["token"], "token_type": "bearer", "expires_in": 3600})

    def do_GET(self) -> None:
        state = json.loads(STATE.read_text())
        asked = urlsplit(self.path)
        for pattern, what, after in state.get("faults", []):
            if re.search(pattern, self.path):
                COUNTS[pattern] += 1
                if COUNTS[pattern] > after:
                    self.fail(what)
                    return
        bearer = self.headers.get("Authorization", "")
        if state.get("token") and bearer != f"Bearer {state['token']}":
            self.refuse(401, "NotAuthorizedException", f"not authorised: {bearer}")
            return
        query = {key: values[0] for key, values in parse_qs(asked.query).items()}
        self.serve(state, asked.path.strip("/").split("/")[1:], query)

    def fail(self, what: object) -> None:
        if what == "hang":
            time.sleep(600)
        elif what == "html":
            self.answer(200, b"<html>a page</html>", "text/html")
        else:
            self.refuse(int(str(what)), "Failed", f"asked to fail: {self.headers.get('Authorization', '')}")

    def serve(self, state: dict[str, Any], parts: list[str], query: dict[str, str]) -> None:
        if parts == ["config"]:
            self.say({"defaults": {}, "overrides": {"prefix": "pre"}, "endpoints": VIEWS})
            return
        if parts[:2] != ["pre", "namespaces"]:
            self.refuse(404, "NotFound", self.path)
            return
        every = [each["levels"] for each in state["namespaces"]]
        if len(parts) == 2:
            parent = query["parent"].split(SEPARATOR) if "parent" in query else []
            below = [each for each in every if each[:-1] == parent]
            if state.get("flat"):  # a server that does not know of parents
                below = [each for each in every if len(each) == 1]
            self.page(state, query, "namespaces", below)
            return
        levels = [unquote(each) for each in unquote(parts[2]).split(SEPARATOR)]
        if levels not in every:
            self.refuse(404, "NoSuchNamespaceException", f"no namespace {levels}")
        elif len(parts) == 3:
            [found] = [each for each in state["namespaces"] if each["levels"] == levels]
            self.say({"namespace": levels, "properties": found.get("properties", {})})
        elif len(parts) == 4:
            listed = [each["name"] for each in state.get(parts[3], []) if each["levels"] == levels]
            self.page(state, query, "identifiers", [{"namespace": levels, "name": name} for name in listed])
        else:
            self.load(state, levels, unquote(parts[4]))

    def page(self, state: dict[str, Any], query: dict[str, str], key: str, every: list[Any]) -> None:
        size = state.get("page") or len(every) or 1
        start = int(query.get("pageToken") or 0)
        said: dict[str, object] = {key: every[start : start + size]}
        if start + size < len(every):
            said["next-page-token"] = str(start + size)
        self.say(said)

    def load(self, state: dict[str, Any], levels: list[str], name: str) -> None:
        full = ".".join((*levels, name))
        COUNTS[full] += 1
        if "X-Iceberg-Access-Delegation" in self.headers:
            self.refuse(403, "ForbiddenException", "no credentials are handed out")
            return
        found = [each for each in state["tables"] if each["levels"] == levels and each["name"] == name]
        if not found or COUNTS[full] > state.get("gone", {}).get(full, 1 << 30):
            self.refuse(404, "NoSuchTableException", f"no table {full}")
            return
        content = Path(found[0]["metadata"]).read_bytes()
        stored = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        place = json.dumps(found[0].get("location"))
        self.answer(200, b'{"metadata-location":' + place.encode() + b',"config":{},"metadata":' + stored + b"}")


if __name__ == "__main__":
    STATE = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Catalog)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
