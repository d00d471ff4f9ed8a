#!/usr/bin/env python3
"""Checks pages against the sources: links lead somewhere, and the errors that checkpointing.md
lists are those of the headers.

    check_pages.py --root DIR PAGE...
"""

import argparse
import pathlib
import re
import sys

# What throws for a region. Its messages have to be in the page's tables.
REGION_HEADERS = [
    "checkpoint.h", "checkpointed.h", "checkpointed_sequential.h", "remember.h",
    "detail/callable.h", "detail/forward_trace.h", "detail/generator_use.h", "detail/graph_end.h",
    "detail/op_observer.h", "detail/region.h", "detail/region_rng.h", "detail/rerun_check.h",
    "detail/tensor_tree.h", "detail/version_check.h", "detail/write_snapshot.h",
]


def check_links(page, root):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not re.match(r"https?:|#", target):
            path = (page.parent / target.split("#")[0]).resolve()
            if not path.exists() or not path.is_relative_to(root.resolve()):
                yield f"{page}: the link to {target} leads nowhere"


def messages(header):
    """Texts of the checks of a header: (line, pieces of literals joined where they touch)."""
    source = re.sub(r"//.*", "", header.read_text(encoding="utf-8"))
    literal = r'"(?:[^"\\]|\\.)*"'
    for call in re.finditer(rf'\b(TORCH_CHECK|static_assert)\s*\((?:{literal}|[^";])*;', source):
        parts = [
            "".join(text[1:-1] for text in re.findall(literal, run))
            for run in re.findall(rf"(?:{literal}\s*)+", call.group())
        ]
        if parts:
            yield source[:call.start()].count("\n") + 1, parts


def check_errors(page, include):
    text = page.read_text(encoding="utf-8")
    tables = text[text.index("## Every error"):text.index("## When memory runs out")]
    quotes = [
        quote for row in re.findall(r"^\| (`.*?) \|", tables, re.M)
        for whole in re.findall(r"`([^`]+)`", row) for quote in whole.split(" ... ")
    ]
    headers = {name: include / name for name in REGION_HEADERS}
    literals = {name: list(messages(path)) for name, path in headers.items()}
    everything = " \n".join(part for all_of in literals.values() for _, parts in all_of
                            for part in parts)
    for quote in quotes:
        if quote not in everything:
            yield f"{page}: no header says '{quote}'"
    for name, all_of in literals.items():
        for line, parts in all_of:
            if not any(quote in part for quote in quotes for part in parts):
                yield f"{page}: lacks an error of {headers[name]}:{line}: {' ... '.join(parts)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True, type=pathlib.Path)
    parser.add_argument("pages", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    faults = []
    for page in arguments.pages:
        faults.extend(check_links(page, arguments.root))
        if page.name == "checkpointing.md":
            faults.extend(check_errors(page, arguments.root / "include/tidemark"))
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
