"""From the text of a job file to values: strict YAML and JSON, limited to what JSON can say."""

import json
import math
import re
from collections.abc import Callable
from typing import Any

import yaml

_MAX_VALUES = 10_000


class InvalidJob(ValueError):  # noqa: N818 - reads as a sentence where it is raised
    """The job file is not valid. `problems` holds one line for each fault, `field: message`."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def decode(text: str, load: Callable[[str], object], language: str) -> object:
    """The values of a text. Raises `InvalidJob` if it is not valid."""
    try:
        return load(text)
    except RecursionError:
        raise InvalidJob([f"job file: not valid {language}: nested too deep"]) from None
    except (ValueError, yaml.YAMLError) as error:
        # ValueError also stands for YAML dates and whole numbers that Python refuses to build.
        raise InvalidJob([f"job file: not valid {language}: {' '.join(str(error).split())}"]) from None


def load_json(text: str) -> object:
    """Strict JSON. Raises ValueError, and RecursionError if it is nested too deep."""
    return json.loads(text, object_pairs_hook=_once)


def load_yaml(text: str) -> object:
    """Safe YAML. Raises ValueError, yaml.YAMLError, and RecursionError if it is nested too deep."""
    return yaml.load(text, Loader=_Yaml)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A mapping in which no field stands twice; readers would keep the last one and say nothing."""
    found = dict(pairs)
    if len(found) < len(pairs):
        fields = [field for field, _ in pairs]
        raise ValueError(f"field {next(field for field in fields if fields.count(field) > 1)!r} stands there twice")
    return found


class _Yaml(yaml.SafeLoader):
    """Safe YAML in which no field may stand twice in a mapping."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        assert isinstance(node, yaml.MappingNode)
        fields = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if repeated := next((field for field in fields if fields.count(field) > 1), None):
            raise yaml.MarkedYAMLError(None, None, f"field {repeated!r} stands there twice", node.start_mark)
        return node


# YAML 1.1 wants a point and a sign in a power of ten, and takes 1e-3 for text.
_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def fault_in(raw: object) -> str | None:
    """What YAML can say and JSON cannot: a job travels as JSON. Aliases may stand for any number of values, or loop."""
    rest: list[tuple[str, object]] = [("", raw)]
    for _ in range(_MAX_VALUES):
        if not rest:
            return None
        field, value = rest.pop()
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    return f"{field or 'job file'}: the field name {key!r} has no place in JSON; quote it"
                if not _is_text(key):
                    return f"{field or 'job file'}: the field name {key!a} has half a character in it"
            rest += [(f"{field}.{key}" if field else key, part) for key, part in value.items()]
        elif isinstance(value, list):
            rest += [(f"{field}.{index}", part) for index, part in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            return f"{field}: must be a finite number (got {value})"
        elif isinstance(value, str):
            if not _is_text(value):
                return f"{field}: half a character (a lone surrogate) is no text; leave it out"
        elif value is not None and not isinstance(value, int | float):
            return f"{field}: a {type(value).__name__} has no place in JSON; quote it to make it a string"
    return f"job file: more than {_MAX_VALUES} values; write out YAML aliases"


def _is_text(value: str) -> bool:
    """Whether it can be written. JSON can say half of a character that takes two codes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
