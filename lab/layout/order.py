#!/usr/bin/env python3
"""order.py BINARY PROFILE... > text-order.ld: a linker script that puts the functions that ran side by side.

BINARY   not stripped; its symbols say how large each function is
PROFILE  what callgrind wrote with --demangle=no

The hash at the end of a Rust symbol changes with every compiler and most changes of the code, so it becomes a pattern
wherever that takes in little that did not run. A line that fits nothing has no effect.
"""
import re
import subprocess
import sys

HASH = re.compile(r"17h[0-9a-f]{16}E$")
# What a pattern may take in beyond the functions that ran, in bytes, or in proportion to them.
SPARE_BYTES, SPARE_SHARE = 2048, 1.0


def sizes(binary: str) -> dict[str, int]:
    """Functions of the binary and their sizes in bytes."""
    listed = subprocess.run(["nm", "-S", "--defined-only", binary], check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in listed.splitlines())
    return {row[3]: int(row[1], 16) for row in rows if len(row) == 4 and row[2] in "tTwW"}


def executed(profiles: list[str]) -> set[str]:
    """Symbols that a profile names, whatever ran them."""
    name = re.compile(r"^c?fn=\(\d+\) ([^'\s]+)", re.M)
    ran = set()
    for path in profiles:
        with open(path) as file:
            ran.update(name.findall(file.read()))
    return ran


def patterns(size: dict[str, int], ran: set[str]) -> list[str]:
    """One pattern for each function that ran, sorted, without doubles."""
    family = lambda symbol: HASH.sub("17h*", symbol)
    whole, hot = {}, {}
    for symbol, n in size.items():
        whole[family(symbol)] = whole.get(family(symbol), 0) + n
        if symbol in ran:
            hot[family(symbol)] = hot.get(family(symbol), 0) + n
    spare = lambda f: whole[f] - hot[f] <= max(SPARE_BYTES, SPARE_SHARE * hot[f])
    return sorted({family(s) if spare(family(s)) else s for s in size.keys() & ran})


def main() -> None:
    binary, *profiles = sys.argv[1:]
    size, ran = sizes(binary), executed(profiles)
    found = patterns(size, ran)
    if not found:
        sys.exit("order.py: no function of the binary is in the profiles: is it stripped?")
    print("/* Functions that run, side by side: see \"Where the memory goes\" in ARCHITECTURE.md. Written by lab/layout/run. */")
    print("SECTIONS\n{\n  .text.used :\n  {")
    for pattern in found:
        print(f"    *(.text*.{pattern})")
    print("  }\n}\nINSERT BEFORE .text;")
    hot = sum(n for symbol, n in size.items() if symbol in ran)
    print(f"{len(found)} patterns for {hot >> 10} KiB of {sum(size.values()) >> 10} KiB", file=sys.stderr)


if __name__ == "__main__":
    main()
