"""JSON held against the published schemas in ``docs/schemas``.

The schemas are open, as fields may be added; here every field must be in its schema, so that none
stays undocumented. Only the words of JSON Schema that the schemas use are known.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs/schemas"
_BEGIN = re.compile(r'\{\s*"schema":\s*"(memplan\.[\w/]+)"')
_KNOWN = {
    *("$schema", "$id", "$ref", "title", "description", "definitions", "oneOf"),
    *("type", "required", "properties", "additionalProperties", "items"),
    *("enum", "const", "minimum", "maximum", "minItems", "maxItems"),
}
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


@cache
def schemas() -> dict[str, Any]:
    """All published schemas, by the ``schema`` of their objects."""
    found = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.schema.json"))]
    return {schema["$id"]: schema for schema in found}


def faults(value: Any, schema: Any = None, place: str = "$", whole: Any = None) -> list[str]:
    """Where ``value`` is not what the schema says; of ``schema`` None: the one it names."""
    if schema is None:
        schema = schemas()[value["schema"]]
    whole = schema if whole is None else whole
    assert schema.keys() <= _KNOWN, f"{place}: {schema.keys() - _KNOWN}"
    if "$ref" in schema:
        return faults(value, whole["definitions"][schema["$ref"].rpartition("/")[2]], place, whole)
    if "oneOf" in schema:
        answers = [faults(value, each, place, whole) for each in schema["oneOf"]]
        return [] if sum(not each for each in answers) == 1 else [f"{place}: {answers}"]
    if "const" in schema or "enum" in schema:
        allowed = schema.get("enum", [schema.get("const")])
        return [] if value in allowed else [f"{place}: {value!r} is not in {allowed}"]
    if "type" in schema and not _is_of(value, schema["type"]):
        return [f"{place}: {value!r} is no {schema['type']}"]
    if isinstance(value, dict):
        return _in_object(value, schema, place, whole)
    if isinstance(value, list):
        items = schema.get("items", {})
        return [f for k, v in enumerate(value) for f in faults(v, items, f"{place}[{k}]", whole)]
    if "minimum" in schema and value is not None and value < schema["minimum"]:
        return [f"{place}: {value} is below {schema['minimum']}"]
    return []


def assert_published(text: str) -> None:
    """What a command printed is as its schema says, if it is JSON with a published schema."""
    found = _BEGIN.match(text)
    if found and found[1] in schemas():
        assert faults(json.loads(text)) == []


def _is_of(value: Any, types: str | list[str]) -> bool:
    names = [types] if isinstance(types, str) else types
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _TYPES[name]) for name in names)


def _in_object(value: dict[str, Any], schema: Any, place: str, whole: Any) -> list[str]:
    own, more = schema.get("properties", {}), schema.get("additionalProperties")
    found = [f"{place}: no {name}" for name in schema.get("required", []) if name not in value]
    for name, inner in value.items():
        if name in own or isinstance(more, dict):
            found += faults(inner, own.get(name, more), f"{place}.{name}", whole)
        elif own:
            found.append(f"{place}: {name} is in no schema")
    return found
