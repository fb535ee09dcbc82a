#!/usr/bin/env python3
"""Holds JSON lines against a JSON schema: schema.py SCHEMA FILE (a JSON value a line; '-' is standard input).

Knows the keywords that our schemas use and refuses a schema with any other, so that nothing is taken for checked that
is not. Exit status: 0 every line fits and there is at least one, 1 one does not, 2 the schema isn't understood."""
import json
import re
import sys

TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "integer": int, "number": (int, float),
}
SILENT = {"$schema", "title", "description"}
KNOWN = SILENT | {"type", "enum", "const", "required", "properties", "additionalProperties", "propertyNames", "minProperties",
                  "items", "minItems", "minimum", "pattern"}


def is_of(value, name):
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, TYPES[name])


def problems(schema, value, where):
    """Sentences that say what doesn't fit."""
    if schema is True:
        return
    if schema is False:
        yield f"{where} should not be there"
        return
    unknown = set(schema) - KNOWN
    if unknown:
        raise NotImplementedError(f"{where}: {', '.join(sorted(unknown))}")
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(is_of(value, name) for name in names):
        yield f"{where} is {json.dumps(value)[:80]}, not of type {' or '.join(names)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where} is {json.dumps(value)}, not one of {json.dumps(schema['enum'])}"
    if "const" in schema and value != schema["const"]:
        yield f"{where} is {json.dumps(value)}, not {json.dumps(schema['const'])}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{where} is {json.dumps(value)[:80]}, which doesn't match {schema['pattern']}"
    if is_of(value, "number") and value < schema.get("minimum", value):
        yield f"{where} is {value}, below {schema['minimum']}"
    if isinstance(value, dict):
        for name in schema.get("required", []):
            if name not in value:
                yield f"{where} has no {name}"
        if len(value) < schema.get("minProperties", 0):
            yield f"{where} has {len(value)} members, fewer than {schema['minProperties']}"
        for name, member in value.items():
            yield from problems(schema.get("propertyNames", True), name, f"a name in {where}")
            part = schema.get("properties", {}).get(name, schema.get("additionalProperties", True))
            yield from problems(part, member, f"{where}.{name}")
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{where} has {len(value)} items, fewer than {schema['minItems']}"
        for index, item in enumerate(value):
            yield from problems(schema.get("items", True), item, f"{where}[{index}]")


def no_duplicates(pairs):
    names = [name for name, _ in pairs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"the same name twice: {', '.join(sorted(twice))}")
    return dict(pairs)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        schema = json.load(file)
    lines = sys.stdin if sys.argv[2] == "-" else open(sys.argv[2], encoding="utf-8")
    count = bad = 0
    for line in lines:
        count += 1
        try:
            wrong = list(problems(schema, json.loads(line, object_pairs_hook=no_duplicates), "value"))
        except NotImplementedError as keywords:
            print(f"schema.py: keywords that this checker doesn't know: {keywords}", file=sys.stderr)
            sys.exit(2)
        except ValueError as error:
            wrong = [str(error)]
        for sentence in wrong:
            print(f"line {count}: {sentence}")
        bad += bool(wrong)
    if not count:
        print("there is no line")
    sys.exit(1 if bad or not count else 0)


if __name__ == "__main__":
    main()
