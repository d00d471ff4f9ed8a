#!/usr/bin/env python3
"""Does what pages tell a new user to do: runs the commands of their ```sh blocks, in order, in a
fresh clone in an empty folder, with an empty home.

    run_commands.py --source DIR [--folder DIR] [--keep-home] PAGE...

Pages are paths within the sources, such as README.md. A command whose program isn't installed is
passed over, and so is one with a <placeholder> and what follows it in its block. Exit status 1 at the
first that fails.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time


def commands_of(page):
    """The commands of a page, and whether they depend on a placeholder; without comments, with
    continued lines joined."""
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
        depends = False
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"\s+#.*", "", line).strip()
            depends = depends or re.search(r"<[^>]+>", command) is not None
            if command:
                yield command, depends


def why_not(command, depends):
    if depends:
        return "it depends on a placeholder"
    program = command.split()[0]
    if "/" not in program and shutil.which(program) is None:
        return f"{program} is not installed"
    return None


def run_all(pages, clone, environment):
    for page in pages:
        for command, depends in commands_of(clone / page):
            reason = why_not(command, depends)
            if reason is not None:
                print(f"{page}: passed over, {reason}: {command}", flush=True)
                continue
            print(f"{page}: {command}", flush=True)
            begin = time.monotonic()
            status = subprocess.run(command, shell=True, cwd=clone, env=environment).returncode
            print(f"{page}: {time.monotonic() - begin:.0f} s, exit status {status}", flush=True)
            if status != 0:
                return 1
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, help="where to clone to (default: temporary)")
    parser.add_argument("--keep-home", action="store_true",
                        help="use what is in the home's caches, LibTorch for one")
    parser.add_argument("pages", nargs="+")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        folder = pathlib.Path(folder)
        clone = folder / "tidemark"
        subprocess.run(["git", "clone", "--quiet", str(arguments.source.resolve()), str(clone)],
                       check=True)
        environment = dict(os.environ)
        if not arguments.keep_home:
            (folder / "home").mkdir()
            environment["HOME"] = str(folder / "home")
            environment.pop("XDG_CACHE_HOME", None)
            environment.pop("Torch_DIR", None)
        return run_all(arguments.pages, clone, environment)


if __name__ == "__main__":
    sys.exit(main())
