"""REST catalogs as a target: a new table is registered by its metadata file, which keeps every id; later ones are
changed snapshot by snapshot under the requirement that main is where we left it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import requests
from pyiceberg.catalog.rest import Endpoints

from bridge.errors import Blocked, Missing, Overtaken, Undecided, Unreachable, UsageError
from bridge.model.findings import Code
from bridge.model.paths import is_absolute, normalise
from bridge.model.table import TableName
from converters import storage
from converters.iceberg.catalogs.rest import RestReader
from converters.iceberg.catalogs.settings import Settings
from converters.iceberg.publish.bookmark import COMMIT, PROPERTY, TIME
from converters.iceberg.warehouse import Held, document, withdraw

__all__ = ["RestHome"]

Json = dict[str, Any]
_CONFLICT, _AT_FAULT = 409, 500
_UNKNOWN_TO_IT = (400, 406, 422, 501)
"""What a server answers to a request that it does not understand."""


class RestHome(RestReader):
    """A REST catalog, and where its new tables lie. It takes snapshots one by one, their sequence numbers ascend."""

    is_exclusive = True
    replaces = False

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._warehouse = str(settings.get("warehouse", ""))

    @property
    def shown(self) -> str:
        return self._settings.shown

    def find(self, name: TableName) -> tuple[TableName, Held] | None:
        """The table as the server returns it."""
        try:
            located = self.locate(name)
        except Missing:
            return None
        assert located.returned is not None
        return name, Held(normalise(located.metadata), json.loads(located.returned))

    def names(self, namespace: tuple[str, ...]) -> Sequence[TableName]:
        """As the server lists them."""
        try:
            with self._told():
                return [TableName(namespace, each[-1]) for each in sorted(self._client.list_tables(namespace))]
        except Missing:
            return []

    def every(self) -> Sequence[TableName]:
        """Of every namespace that the server lists."""
        return [TableName(each.levels, name) for each in self.namespaces() for name in each.tables]

    def location(self, name: TableName) -> str:
        """Below the namespace's own location, else below the warehouse where that is a path."""
        place = ""
        if name.namespace:
            try:
                with self._told():
                    place = str(self._client.load_namespace_properties(name.namespace).get("location", ""))
            except Missing:
                place = ""
        if place:
            return f"{storage.absolute(place).rstrip('/')}/{name.name}"
        if not is_absolute(self._warehouse):
            raise UsageError(
                f"{self.shown} does not tell where new tables lie",
                hint="give the namespace a location, or --target-option warehouse=URI",
            )
        return "/".join((storage.absolute(self._warehouse).rstrip("/"), *name.namespace, name.name))

    def commit(self, name: TableName, held: Held | None, metadata: Mapping[str, Any], mark: str) -> str:
        """Register the first metadata file; afterwards tell the server what changed."""
        if held is None:
            return self._register(name, metadata, mark)
        changed = _renumbered(held.metadata, metadata)
        for updates in _steps(held.metadata, changed):
            at = updates.pop("at")
            requirements = [
                {"type": "assert-table-uuid", "uuid": held.metadata["table-uuid"]},
                {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": at},
            ]
            self._post(
                name,
                Endpoints.update_table,
                {
                    "identifier": {"namespace": list(name.namespace), "name": name.name},
                    "requirements": requirements,
                    "updates": updates["updates"],
                },
                f"{name} in {self.shown} is no longer at snapshot {at}",
            )
        found = self.find(name)
        return found[1].path if found is not None else ""

    def settle(self, name: TableName, held: Held) -> None:
        """A commit is one step."""

    def forget(self, name: TableName, held: Held) -> None:
        """The server drops it without a purge; its metadata files are the server's."""
        found = self.find(name)
        if found is None or found[1].path != held.path:
            raise Overtaken(f"{name} in {self.shown} changed meanwhile", hint="run it again")
        with self._told():
            self._client.drop_table((*name.namespace, name.name))

    def _register(self, name: TableName, metadata: Mapping[str, Any], mark: str) -> str:
        for depth in range(1, len(name.namespace) + 1):
            levels = name.namespace[:depth]
            try:
                with self._told():
                    self._client.load_namespace_properties(levels)
            except Missing:
                answer = self._send(Endpoints.create_namespace, {"namespace": list(levels), "properties": {}}, {})
                if not answer.ok and answer.status_code != _CONFLICT:
                    said = f"refused the namespace {'.'.join(levels)}: {self._said(answer)}"
                    raise Unreachable(f"{name}: {self.shown} {said}") from None
        path = f"{metadata['location']}/metadata/00000-{uuid.uuid4()}.metadata.json"
        storage.write(path, document(metadata), f".{mark}.tmp")
        try:
            self._post(
                name,
                Endpoints.register_table,
                {"name": name.name, "metadata-location": path},
                f"{name} was created in {self.shown} meanwhile",
                int(metadata["format-version"]),
            )
        except Overtaken:  # after any other answer the server may still be at it
            withdraw(self, name, path)
            raise
        return path

    def _post(self, name: TableName, endpoint: str, body: Json, conflict: str, version: int = 0) -> None:
        levels = self._client._split_identifier_for_path((*name.namespace, name.name))
        try:
            answer = self._send(endpoint, body, dict(levels))
        except Unreachable as error:
            raise Undecided(f"{name}: {error.message}", hint=error.hint, retryable=error.retryable) from error
        if answer.status_code == _CONFLICT:
            raise Overtaken(conflict, hint="run it again")
        if answer.ok and _is_table(answer):
            return
        upgrades = any(each.get("action") == "upgrade-format-version" for each in body.get("updates", ()))
        if (version >= 3 or upgrades) and answer.status_code in _UNKNOWN_TO_IT:
            raise Blocked(
                f"{name}: {self.shown} takes no table of format 3: {self._said(answer)}",
                code=Code.CATALOG_FORMAT_3.text,
                hint="publish it to a warehouse directory or a SQL catalog",
            )
        # one in between may have given up on a server that is still at it, or have answered in its place
        if answer.ok or answer.status_code >= _AT_FAULT:
            raise Undecided(f"{name}: {self.shown} failed at it: {self._said(answer)}")
        raise Unreachable(f"{name}: {self.shown} refused it: {self._said(answer)}")

    def _send(self, endpoint: str, body: Json, levels: Mapping[str, str]) -> requests.Response:
        wanted = {key: value for key, value in levels.items() if "{" + key + "}" in endpoint}
        with self._told():
            url = self._client.url(endpoint, prefixed=True, **wanted)
            return self._client._session.post(url, data=json.dumps(body).encode())

    def _said(self, answer: requests.Response) -> str:
        try:
            told = answer.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            told = f"HTTP {answer.status_code}"
        return self._settings.public(told)


def _is_table(answer: requests.Response) -> bool:
    try:
        said = answer.json()
    except ValueError:
        return False
    return isinstance(said, dict) and "metadata" in said


def _without(stored: Mapping[str, Any], key: str) -> Json:
    return {name: value for name, value in stored.items() if name != key}


def _renumbered(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> Json:
    """The document under the schema ids that the server has, or will give: it counts on from its highest."""
    known = {json.dumps(_without(each, "schema-id"), sort_keys=True): each["schema-id"] for each in held["schemas"]}
    highest = max(known.values(), default=-1)
    ids: dict[int, int] = {}
    for schema in wanted["schemas"]:
        text = json.dumps(_without(schema, "schema-id"), sort_keys=True)
        if text not in known:
            highest += 1
            known[text] = highest
        ids[schema["schema-id"]] = known[text]
    there = {each["snapshot-id"]: each for each in held.get("snapshots") or ()}
    made: Json = dict(wanted)
    made["schemas"] = list(
        {ids[each["schema-id"]]: {**each, "schema-id": ids[each["schema-id"]]} for each in wanted["schemas"]}.values()
    )
    made["current-schema-id"] = ids[wanted["current-schema-id"]]
    made["snapshots"] = [
        there.get(each["snapshot-id"]) or {**each, "schema-id": ids[each["schema-id"]]} for each in wanted["snapshots"]
    ]
    return made


def _steps(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Json]:
    """Requests in their order, each with the snapshot that main is to be at before it: one a snapshot, since a server
    forgets when a snapshot was current that another followed in the same request."""
    there = {each["snapshot-id"] for each in held.get("snapshots") or ()}
    new = [each for each in wanted["snapshots"] if each["snapshot-id"] not in there]
    at = held.get("current-snapshot-id")
    at = None if at == -1 else at
    steps: list[Json] = []
    before = _definition(held, wanted)
    for snapshot in new:
        id_ = snapshot["snapshot-id"]
        steps.append(
            {
                "at": at,
                "updates": [
                    *before,
                    {"action": "add-snapshot", "snapshot": snapshot},
                    {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id_},
                    {"action": "set-properties", "updates": {PROPERTY: _bookmark(wanted, snapshot)}},
                ],
            }
        )
        at, before = id_, []
    if not steps:
        steps = [{"at": at, "updates": before}]
    # with the last snapshot: a request of its own might not come, and then nothing would tell that it is missing
    steps[-1]["updates"] += _rest(held, wanted)
    return [each for each in steps if each["updates"]]


def _bookmark(wanted: Mapping[str, Any], snapshot: Mapping[str, Any]) -> str:
    """The bookmark as it stands when the run has come to a snapshot."""
    said, of = json.loads(wanted["properties"][PROPERTY]), snapshot["summary"]
    time = int(of[TIME]) if TIME in of else None
    said |= {"commit": of[COMMIT], "time": time, "snapshot": snapshot["snapshot-id"]}
    said["layout"][0] = wanted["current-schema-id"]
    return json.dumps(said, sort_keys=True)


def _definition(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Json]:
    found: list[Json] = []
    if wanted["format-version"] > held["format-version"]:
        found.append({"action": "upgrade-format-version", "format-version": wanted["format-version"]})
    found += _added(held, wanted, "schemas", "schema-id", "schema", "add-schema")
    if wanted["current-schema-id"] != held["current-schema-id"]:
        found.append({"action": "set-current-schema", "schema-id": wanted["current-schema-id"]})
    found += _added(held, wanted, "partition-specs", "spec-id", "spec", "add-spec")
    if wanted["default-spec-id"] != held["default-spec-id"]:
        found.append({"action": "set-default-spec", "spec-id": wanted["default-spec-id"]})
    found += _added(held, wanted, "sort-orders", "order-id", "sort-order", "add-sort-order")
    if wanted["default-sort-order-id"] != held["default-sort-order-id"]:
        found.append({"action": "set-default-sort-order", "sort-order-id": wanted["default-sort-order-id"]})
    return found


def _added(
    held: Mapping[str, Any], wanted: Mapping[str, Any], key: str, id_: str, name: str, action: str
) -> list[Json]:
    known = {each[id_] for each in held[key]}
    return [{"action": action, name: each} for each in wanted[key] if each[id_] not in known]


def _rest(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Json]:
    found: list[Json] = []
    kept = {each["snapshot-id"] for each in wanted["snapshots"]}
    gone = [each["snapshot-id"] for each in held.get("snapshots") or () if each["snapshot-id"] not in kept]
    if gone:
        found.append({"action": "remove-snapshots", "snapshot-ids": gone})
    refs = held.get("refs") or {}
    for name, ref in wanted["refs"].items():
        if name != "main" and refs.get(name) != ref:
            found.append({"action": "set-snapshot-ref", "ref-name": name, **ref})
    found += [{"action": "remove-snapshot-ref", "ref-name": name} for name in refs if name not in wanted["refs"]]
    properties, before = dict(wanted["properties"]), held.get("properties") or {}
    properties[PROPERTY] = _last_bookmark(wanted)
    changed = {key: value for key, value in properties.items() if before.get(key) != value}
    if changed:
        found.append({"action": "set-properties", "updates": changed})
    if dropped := [key for key in before if key not in properties]:
        found.append({"action": "remove-properties", "removals": dropped})
    return found


def _last_bookmark(wanted: Mapping[str, Any]) -> str:
    said = json.loads(wanted["properties"][PROPERTY])
    said["layout"][0] = wanted["current-schema-id"]
    return json.dumps(said, sort_keys=True)
