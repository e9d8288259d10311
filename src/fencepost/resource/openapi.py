"""The service's OpenAPI 3.1 document: tests make requests from it, and check the answers against it."""

from typing import Any

from fencepost.rule import MAX_TOKEN, Verdict

Json = dict[str, Any]

# Above 2^53-1 a number is sent as text, for readers of JSON that round it.
_NUMBER: Json = {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]{16,19}$"}]}
_KEY: Json = {
    "name": "key",
    "in": "path",
    "required": True,
    "description": "Percent-encoded UTF-8, at most 512 bytes of it, without control characters. May contain slashes.",
    "schema": {"type": "string", "minLength": 1, "pattern": r"^[^\u0000-\u001F\u007F-\u009F]+$"},
}


def document(*, secured: bool, max_body: int) -> Json:
    """The description of a service that asks for bearer tokens, if ``secured``, and takes so large a body."""
    everywhere: Json = {
        "400": _error("The key or a header is malformed."),
        "431": _error("The path and the headers are too large."),
        "503": _error("The store failed, or too many requests wait for it."),
        "507": _error("The key is new, and there are as many as there may be."),
    }
    if secured:
        everywhere |= {
            "401": _error("No token, or one that is not known.", **{"WWW-Authenticate": {"type": "string"}}),
            "403": _error("The key has none of the client's prefixes."),
        }
    else:
        everywhere |= {"403": _error("The request names another host, or comes from another site's page.")}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fencepost resource",
            "version": "1",
            "description": "Values behind a guard: a write from a holder that has been replaced is refused.",
        },
        "components": {
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {"error": {"type": "string"}},
                },
                "Refusal": _refusal(),
            },
            **({"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}} if secured else {}),
        },
        **({"security": [{"bearer": []}]} if secured else {}),
        "paths": {
            "/r/{key}": {
                "parameters": [_KEY],
                "get": _get(everywhere),
                "put": _put(everywhere, max_body),
                "delete": _delete(everywhere),
            },
            "/metrics": {"get": _page("Prometheus metrics.", "text/plain", {"type": "string"}, secured=secured)},
            "/healthz": {"get": _page("Whether its store can be used.", "application/json", _health(), failing=True)},
            "/openapi.json": {"get": _page("This document.", "application/json", {"type": "object"})},
        },
    }


def _put(everywhere: Json, max_body: int) -> Json:
    return {
        "operationId": "write",
        "summary": "Replace a value; on disk, with its mark, once answered.",
        "parameters": _stamp(required=True),
        "requestBody": {
            "description": f"Any bytes, at most {max_body} of them.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        "responses": {
            "200": _answer("Written.", "application/json", _made("written"), marked=True),
            **everywhere,
            "408": _error("The body came too slowly."),
            "409": _refused("A newer holder was here, or the stamp was used before."),
            "413": _error("The body is too large."),
            "428": _refused("No fencing token was sent."),
        },
    }


def _delete(everywhere: Json) -> Json:
    return {
        "operationId": "delete",
        "summary": "Remove a value, if there is one; its mark stays.",
        "parameters": _stamp(required=True),
        "responses": {
            "200": _answer("Deleted.", "application/json", _made("deleted"), marked=True),
            **everywhere,
            "409": _refused("A newer holder was here, or the stamp was used before."),
            "428": _refused("No fencing token was sent."),
        },
    }


def _made(what: str) -> Json:
    return {
        "type": "object",
        "required": [what, "replay", "max_fence"],
        "properties": {
            what: {"const": True},
            "replay": {"type": "boolean", "description": "The very same write had been made before."},
            "max_fence": _NUMBER,
        },
    }


def _get(everywhere: Json) -> Json:
    value = {
        "type": "object",
        "required": ["value", "encoding", "max_fence"],
        "properties": {
            "value": {"type": "string"},
            "encoding": {"enum": ["utf-8", "base64"]},
            "max_fence": _NUMBER,
        },
    }
    found = _answer("The value.", "application/octet-stream", {}, marked=True)
    found["content"]["application/json"] = {"schema": value}
    return {
        "operationId": "read",
        "summary": "Read a value; with a token this enters: older holders are refused from then on.",
        "parameters": _stamp(required=False),
        "responses": {
            "200": found,
            **everywhere,
            "404": _error("Nothing was written there yet."),
            "409": _refused("A newer holder was here."),
        },
    }


def _stamp(*, required: bool) -> list[Json]:
    def header(name: str, text: str, schema: Json, required: bool = False) -> Json:
        return {"name": name, "in": "header", "required": required, "description": text, "schema": schema}

    count = {"type": "integer", "format": "int64", "minimum": 1 if required else 0, "maximum": MAX_TOKEN}
    return [
        header(
            "X-Fence-Token",
            "The lease's token.",
            {"type": "integer", "format": "int64", "minimum": 1, "maximum": MAX_TOKEN},
            required,
        ),
        header(
            "X-Fence-Seq",
            "Counts the accesses made under one lease. Without X-Fence-Token it is refused; above 1 it needs a holder.",
            count,
        ),
        header(
            "X-Fence-Holder",
            "The lease's holder, at most 512 bytes. Without X-Fence-Token it is refused.",
            {"type": "string", "pattern": "^[!-~]{1,512}$"},
        ),
    ]


def _refusal() -> Json:
    return {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {"type": "string"},
            "verdict": {"enum": [verdict.value for verdict in Verdict if verdict is not Verdict.ADMIT]},
            "seen": _NUMBER,
            "got": _NUMBER,
            "seen_seq": _NUMBER,
            "got_seq": _NUMBER,
        },
    }


def _health() -> Json:
    mode = {"type": "string", "description": "How far the guard goes, such as shadow, canary:10% or strict."}
    return {
        "type": "object",
        "required": ["status", "mode"],
        "properties": {"status": {"const": "ok"}, "mode": mode},
    }


def _page(text: str, kind: str, schema: Json, *, secured: bool = False, failing: bool = False) -> Json:
    responses = {"200": _answer(text, kind, schema)}
    if secured:
        responses["401"] = _error("No token, or one that is not known.", **{"WWW-Authenticate": {"type": "string"}})
    if failing:
        responses["503"] = _error("The store failed, or too many requests wait for it.")
    return {"summary": text, "responses": responses, **({} if secured else {"security": []})}


def _answer(text: str, kind: str, schema: Json, *, marked: bool = False) -> Json:
    mark = {"X-Fence-Mark": {"description": "The largest token admitted.", "schema": {"type": "string"}}}
    return {"description": text, "content": {kind: {"schema": schema}}, **({"headers": mark} if marked else {})}


def _error(text: str, **headers: Json) -> Json:
    answer = _answer(text, "application/json", {"$ref": "#/components/schemas/Error"})
    if headers:
        answer["headers"] = {name: {"required": True, "schema": schema} for name, schema in headers.items()}
    return answer


def _refused(text: str) -> Json:
    answer = _answer(text, "application/json", {"$ref": "#/components/schemas/Refusal"})
    verdict: Json = {"schema": {"type": "string"}, "required": True}
    return answer | {"headers": {"X-Fence-Verdict": verdict}}
