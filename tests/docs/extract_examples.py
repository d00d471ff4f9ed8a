#!/usr/bin/env python3
"""Makes a C++ source with a test for each example in Markdown pages and headers.

    extract_examples.py --out examples.cpp --root DIR README.md include/tidemark/checkpoint.h ...

An example is a ```cpp block of a page, or a block of a header's comment that is indented by four
more spaces. One that begins with a declaration (struct, class, template, TEST) stays at namespace
scope; anything else becomes the body of a function of Context (context.h), and a test calls it.
Later examples of a file see the declarations of earlier ones. What can't run everywhere, since it
names CUDA, is compiled only.
"""

import argparse
import pathlib
import re
import textwrap

DECLARATION = re.compile(r"(struct|class|template|TEST|TORCH_MODULE|inline|enum|int main)\b")


def examples_of_page(lines):
    """(number of the first line, text) of each ```cpp block."""
    begin = None
    for number, line in enumerate(lines, start=1):
        if begin is None and line.strip() == "```cpp":
            begin = number
        elif begin is not None and line.strip() == "```":
            yield begin + 1, textwrap.dedent("\n".join(lines[begin:number - 1]))
            begin = None


def examples_of_header(lines):
    """The same of blocks in comments, which follow a line of comment that is empty."""
    block, first, after_empty = [], 0, False
    for number, line in enumerate(lines + [""], start=1):
        match = re.match(r"\s*///?(.*)$", line)
        text = match.group(1) if match else None
        is_code = text is not None and text.startswith("     ")
        if is_code and (block or after_empty):
            if not block:
                first = number
            block.append(text[5:])
        elif block and text is not None and not text.strip():
            block.append("")
        else:
            if block:
                yield first, "\n".join(block).rstrip()
            block = []
        after_empty = text is not None and not text.strip()


def first_token(text):
    for line in text.splitlines():
        line = re.sub(r"//.*", "", line).strip()
        if line and not line.startswith("using "):
            return line
    return ""


def write_file(out, path, name, examples, includes):
    suite = re.sub(r"\W+", "_", name)
    out.append(f"namespace {suite} {{\n")
    visible = []
    for first, text in examples:
        lines = text.splitlines()
        for i, line in enumerate(lines):
            if line.startswith("#include"):
                includes.append(line)
                lines[i] = ""
        text = "\n".join(lines)
        if not text.strip():
            continue
        scope = f"line_{first}"
        out.append(f"namespace {scope} {{\n")
        out.extend(f"using namespace {earlier};\n" for earlier in visible)
        if DECLARATION.match(first_token(text)):
            # A test of the example becomes one that sees the context.
            text = re.sub(
                r"\bTEST\((\w+), (\w+)\)",
                r"struct \1\2Context : docs::Context, ::testing::Test {}; TEST_F(\1\2Context, \2)",
                text)
            out.append(f'#line {first} "{path}"\n{text}\n')
            visible.append(scope)
        else:
            out.append(
                "struct Example : docs::Context {\n  void run() {\n"
                f"DOCS_VARIABLES(DOCS_VARIABLE) {{\n#line {first} \"{path}\"\n{text}\n}}\n  }}\n}};\n")
            if "kCUDA" not in text:
                out.append(f"TEST({suite}, Line{first}) {{ Example().run(); }}\n")
        out.append(f"}}  // namespace {scope}\n")
    out.append(f"}}  // namespace {suite}\n\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--root", required=True, type=pathlib.Path)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    body, includes = [], []
    for path in arguments.files:
        lines = path.read_text(encoding="utf-8").splitlines()
        find = examples_of_page if path.suffix == ".md" else examples_of_header
        examples = list(find(lines))
        if examples:
            write_file(body, path, str(path.relative_to(arguments.root)), examples, includes)
    head = ['#include "docs/context.h"\n']
    head.extend(line + "\n" for line in sorted(set(includes)))
    head.append("\nusing namespace docs::types;  // NOLINT\n\n")
    pathlib.Path(arguments.out).write_text("".join(head + body), encoding="utf-8")


if __name__ == "__main__":
    main()
