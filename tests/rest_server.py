"""An Iceberg REST catalog for tests, run as a process: it serves metadata files as they are and misbehaves on request.

    python rest_server.py STATE.json      prints its port; ends with its standard input

STATE.json is read again for every request:
    namespaces  [{"levels": [...], "properties": {...}}]
    tables      [{"levels": [...], "name": ..., "metadata": path of a metadata file, "location": text told for it}]
    views       [{"levels": [...], "name": ...}]
    page        entries a page (0: all at once)
    token       what a request must bear; /v1/oauth/tokens hands it out for `credential` (client:secret)
    faults      [[regular expression on the path, HTTP status or "hang" or "html" or "slow", after so many requests]]
    writable    the highest format version that tables may have; without it nothing can be written
    commits     [status, after, seconds]: the answer to one commit, after so many others; what it asks for is done that
                much later (null: never)
    gone        {"a.t": n}: the table is not there any more once it was loaded n times
"""

from __future__ import annotations

import copy
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
WRITES = [
    f"POST /v1/{{prefix}}/namespaces{rest}" for rest in ("", "/{namespace}/register", "/{namespace}/tables/{table}")
]
WRITES.append("DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}")


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
        if not self.path.startswith("/v1/oauth"):
            parts = [unquote(each) for each in urlsplit(self.path).path.strip("/").split("/")[2:]]
            if parts[2:3] == ["tables"] and "commits" in state:
                COUNTS["commits"] += 1
                status, after, seconds = state["commits"]
                if COUNTS["commits"] == after + 1:
                    self.late(status, seconds, parts, json.loads(body))
                    return
            self.write(state, parts, json.loads(body))
            return
        given = {key: values[0] for key, values in parse_qs(body).items()}
        if f"{given.get('client_id')}:{given.get('client_secret')}" != state.get("credential"):
            told = f"the client {given.get('client_id')} with {given.get('client_secret')} is unknown"
            refused = {"error": "invalid_client", "error_description": told}
            self.answer(401, json.dumps(refused).encode())
            return
        self.say({"access_token": state["token"], "token_type": "bearer", "expires_in": 3600})

    def late(self, status: int, seconds: float | None, parts: list[str], body: dict[str, Any]) -> None:
        """As a gateway does that does not wait for the server behind it."""
        behind: Any = copy.copy(self)
        behind.answer = lambda *_: None
        if status == 200:
            self.answer(200, b"<html>a page</html>", "text/html")
        else:
            self.refuse(status, "Failed", "asked to fail")

        def work() -> None:
            time.sleep(seconds or 0)
            behind.write(json.loads(STATE.read_text()), parts, body)

        if seconds is not None:
            threading.Thread(target=work).start()

    def do_DELETE(self) -> None:
        """A table is dropped; what it was of stays."""
        state = json.loads(STATE.read_text())
        _, _, levels, _, name = [unquote(each) for each in urlsplit(self.path).path.strip("/").split("/")[1:]]
        kept = [each for each in state["tables"] if (SEPARATOR.join(each["levels"]), each["name"]) != (levels, name)]
        self.keep({**state, "tables": kept})
        self.answer(204, b"")

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
            self.say({"defaults": {}, "overrides": {"prefix": "pre"}, "endpoints": VIEWS + WRITES})
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

    def write(self, state: dict[str, Any], parts: list[str], body: dict[str, Any]) -> None:
        """New namespaces, registered tables and commits, where the state says `writable` (the highest format)."""
        if not state.get("writable"):
            self.refuse(403, "ForbiddenException", "read-only")
        elif parts == ["namespaces"]:
            state["namespaces"].append({"levels": body["namespace"], "properties": body["properties"]})
            self.keep(state)
            self.say(body)
        elif parts[2] == "register":
            levels = parts[1].split(SEPARATOR)
            if any(each["levels"] == levels and each["name"] == body["name"] for each in state["tables"]):
                self.refuse(409, "AlreadyExistsException", "there already")
                return
            place = body["metadata-location"]
            metadata = json.loads(Path(place).read_text())
            if metadata["format-version"] > state["writable"]:
                self.refuse(400, "BadRequestException", f"format {metadata['format-version']} is unknown")
                return
            entry = {"levels": levels, "name": body["name"], "metadata": place, "location": place}
            state["tables"].append(entry)
            self.keep(state)
            self.say({"metadata-location": place, "metadata": metadata, "config": {}})
        else:
            self.commit(state, parts[1].split(SEPARATOR), parts[3], body)

    def commit(self, state: dict[str, Any], levels: list[str], name: str, body: dict[str, Any]) -> None:
        [found] = [each for each in state["tables"] if each["levels"] == levels and each["name"] == name]
        metadata = json.loads(Path(found["metadata"]).read_text())
        for each in body["requirements"]:
            main = (metadata.get("refs") or {}).get("main", {}).get("snapshot-id")
            if each["type"] == "assert-ref-snapshot-id" and each["snapshot-id"] != main:
                self.refuse(409, "CommitFailedException", f"main is at {main}")
                return
            if each["type"] == "assert-table-uuid" and each["uuid"] != metadata["table-uuid"]:
                self.refuse(409, "CommitFailedException", "another table")
                return
        try:
            for each in body["updates"]:
                updated(metadata, each, state["writable"])
        except ValueError as error:
            self.refuse(400, "BadRequestException", str(error))
            return
        number = int(Path(found["metadata"]).name.split("-")[0]) + 1
        place = Path(found["metadata"]).with_name(f"{number:05}-server.metadata.json")
        place.write_text(json.dumps(metadata))
        found["metadata"] = found["location"] = str(place)
        self.keep(state)
        self.say({"metadata-location": str(place), "metadata": metadata})

    def keep(self, state: dict[str, Any]) -> None:
        STATE.with_suffix(".kept").write_text(json.dumps(state))
        STATE.with_suffix(".kept").rename(STATE)

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


def updated(metadata: dict[str, Any], update: dict[str, Any], highest: int) -> None:
    """What Iceberg Java's TableMetadata.Builder does to the metadata, ids included."""
    match update["action"]:
        case "upgrade-format-version":
            if update["format-version"] > highest:
                raise ValueError(f"format {update['format-version']} is unknown")
            metadata["format-version"] = update["format-version"]
            metadata.setdefault("next-row-id", 0)
        case "add-schema":
            id_ = max(each["schema-id"] for each in metadata["schemas"]) + 1
            metadata["schemas"].append({**update["schema"], "schema-id": id_})
        case "set-current-schema":
            if update["schema-id"] not in {each["schema-id"] for each in metadata["schemas"]}:
                raise ValueError(f"no schema {update['schema-id']}")
            metadata["current-schema-id"] = update["schema-id"]
        case "add-spec":
            id_ = max(each["spec-id"] for each in metadata["partition-specs"]) + 1
            metadata["partition-specs"].append({**update["spec"], "spec-id": id_})
        case "set-default-spec":
            metadata["default-spec-id"] = update["spec-id"]
        case "add-sort-order":
            metadata["sort-orders"].append(update["sort-order"])
        case "set-default-sort-order":
            metadata["default-sort-order-id"] = update["sort-order-id"]
        case "add-snapshot":
            snapshot = update["snapshot"]
            if snapshot["schema-id"] not in {each["schema-id"] for each in metadata["schemas"]}:
                raise ValueError(f"no schema {snapshot['schema-id']}")
            if snapshot["sequence-number"] <= metadata["last-sequence-number"]:
                raise ValueError("a sequence number from the past")
            metadata["snapshots"].append(snapshot)
            metadata["last-sequence-number"] = snapshot["sequence-number"]
            metadata["last-updated-ms"] = max(metadata["last-updated-ms"], snapshot["timestamp-ms"])
            if "next-row-id" in metadata:
                metadata["next-row-id"] += snapshot.get("added-rows", 0)
        case "set-snapshot-ref":
            ref = {key: value for key, value in update.items() if key not in ("action", "ref-name")}
            metadata["refs"][update["ref-name"]] = ref
            if update["ref-name"] == "main":
                id_ = update["snapshot-id"]
                [time] = [each["timestamp-ms"] for each in metadata["snapshots"] if each["snapshot-id"] == id_]
                metadata["current-snapshot-id"] = id_
                metadata["snapshot-log"].append({"timestamp-ms": time, "snapshot-id": id_})
        case "remove-snapshots":
            gone = set(update["snapshot-ids"])
            metadata["snapshots"] = [each for each in metadata["snapshots"] if each["snapshot-id"] not in gone]
        case "set-properties":
            metadata["properties"] |= update["updates"]
        case "remove-properties":
            for key in update["removals"]:
                metadata["properties"].pop(key, None)
        case other:
            raise ValueError(f"unknown update {other}")


if __name__ == "__main__":
    STATE = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Catalog)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
