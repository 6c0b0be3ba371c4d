"""What a file must be for viewers of the Chrome trace event format to show it as it was meant."""

import json
from collections import defaultdict
from typing import Any

import jsonschema

_ID = {"type": "integer", "minimum": 1}
_TIME = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string", "minLength": 1}


def _event(ph: str, required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"ph": {"const": ph}, **required, **(optional or {})},
        "required": ["ph", *required],
        "additionalProperties": False,
    }


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    _event(
                        "X",
                        {
                            "name": _TEXT, "cat": _TEXT, "pid": _ID, "tid": _ID, "ts": _TIME, "dur": _TIME,
                            "args": {"type": "object"},
                        },
                    ),
                    _event(
                        "C",
                        {
                            "name": _TEXT, "pid": _ID, "ts": _TIME,
                            "args": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "number"}},
                        },
                    ),
                    _event(
                        "M",
                        {
                            "name": {"enum": ["process_name", "process_labels", "thread_name"]},
                            "pid": _ID,
                            "args": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}},
                        },
                        {"tid": {"type": "integer", "minimum": 0}},
                    ),
                    _event(
                        "M",
                        {
                            "name": {"enum": ["process_sort_index", "thread_sort_index"]},
                            "pid": _ID,
                            "args": {
                                "type": "object", "properties": {"sort_index": {"type": "integer"}},
                                "required": ["sort_index"], "additionalProperties": False,
                            },
                        },
                        {"tid": {"type": "integer", "minimum": 0}},
                    ),
                ]
            },
        },
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
    },
    "required": ["traceEvents"],
    "additionalProperties": False,
}  # fmt: skip

_VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
Piece = tuple[int, int, str]


def lanes_of(text: str) -> dict[str, list[Piece]]:
    """Check a trace, and give the slices of each lane as (begin, end, name) in us; lanes are `rank 0/compute`."""
    trace = json.loads(text)
    _VALIDATOR.validate(trace)
    names = {kind: _names(trace, kind) for kind in ("process_name", "thread_name")}
    lanes: dict[str, list[Piece]] = defaultdict(list)
    owner: dict[int, int] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            assert owner.setdefault(event["tid"], event["pid"]) == event["pid"], "a lane belongs to one process"
            process, thread = names["process_name"][event["pid"], 0], names["thread_name"][event["pid"], event["tid"]]
            lanes[f"{process}/{thread}"].append((event["ts"], event["ts"] + event["dur"], event["name"]))
        elif event["ph"] == "C":
            assert (event["pid"], 0) in names["process_name"]
    for pieces in lanes.values():
        _check_nesting(pieces)
    return dict(lanes)


def _names(trace: dict[str, Any], kind: str) -> dict[tuple[int, int], str]:
    found: dict[tuple[int, int], str] = {}
    for event in trace["traceEvents"]:
        if event["name"] == kind:
            key = (event["pid"], event.get("tid", 0))
            assert key not in found, "named twice"
            assert event["args"]["name"] not in [name for (pid, _), name in found.items() if pid == event["pid"]]
            found[key] = event["args"]["name"]
    return found


def _check_nesting(pieces: list[Piece]) -> None:
    """Slices of a lane lie beside each other or within each other, and the outer one comes first."""
    around: list[Piece] = []
    last = 0
    for begin, end, name in pieces:
        assert begin >= last, f"{name} begins before the one before it"
        last = begin
        while around and begin >= around[-1][1]:
            around.pop()
        assert not around or end <= around[-1][1], f"{name} sticks out of {around[-1][2]}"
        around.append((begin, end, name))
