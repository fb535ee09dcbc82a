#!/usr/bin/env python3
"""Validates a JSON file against a JSON schema: `validate.py SCHEMA FILE`. Problems go to stdout, exit status 1.

Knows the keywords that our schemas use (draft 7): type, const, enum, minimum, pattern, required, properties,
additionalProperties: false, items. Any other keyword is an error, so that no rule is passed over in silence."""
import json
import re
import sys

ANNOTATIONS = {"$schema", "title", "description"}


def type_of(value):
    """JSON's name of a value's type; whole numbers are "integer"."""
    if value is None:
        return "null"
    return {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}[type(value)]


def check(schema, value, where):
    """Yields a sentence for each rule that `value` breaks."""
    kind = type_of(value)
    for keyword, rule in schema.items():
        if keyword in ANNOTATIONS:
            continue
        if keyword == "type":
            kinds = rule if isinstance(rule, list) else [rule]
            if kind not in kinds and not (kind == "integer" and "number" in kinds):
                yield f"{where} is {kind}, not {' or '.join(kinds)}"
        elif keyword == "const":
            if type_of(rule) != kind or rule != value:
                yield f"{where} is {value!r}, not {rule!r}"
        elif keyword == "enum":
            if value not in rule:
                yield f"{where} is {value!r}, none of {rule}"
        elif keyword == "minimum":
            if kind in ("integer", "number") and value < rule:
                yield f"{where} is {value}, below {rule}"
        elif keyword == "pattern":
            if kind == "string" and not re.search(rule, value):
                yield f"{where} is {value!r}, which does not match {rule}"
        elif keyword == "required":
            if kind == "object":
                yield from (f"{where} lacks {name}" for name in rule if name not in value)
        elif keyword == "properties":
            if kind == "object":
                for name, part in rule.items():
                    if name in value:
                        yield from check(part, value[name], f"{where}.{name}")
        elif keyword == "additionalProperties" and rule is False:
            if kind == "object":
                yield from (f"{where} has {name}, which is not in the schema"
                            for name in value if name not in schema.get("properties", {}))
        elif keyword == "items":
            if kind == "array":
                for index, item in enumerate(value):
                    yield from check(rule, item, f"{where}[{index}]")
        else:
            yield f"the schema's keyword {keyword} is not known here"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        with open(sys.argv[1], encoding="utf-8") as schema, open(sys.argv[2], encoding="utf-8") as instance:
            problems = list(check(json.load(schema), json.load(instance), "report"))
    except (OSError, ValueError) as error:
        problems = [str(error)]
    for problem in problems:
        print(f"# {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
