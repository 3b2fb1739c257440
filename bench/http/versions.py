#!/usr/bin/env python3
"""What was compared on what: versions, processors, kernel."""
import os
import platform
import subprocess

from ours import BINARY
from peers import Envoy, Haproxy, Nginx


def first_line(*argv) -> str:
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return next((line.strip() for line in done.stdout.splitlines() if line.strip()), "?")


def main():
    model = next((line.partition(":")[2].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    print(f"{os.cpu_count()} cores, {model}, Linux {platform.release()}")
    for argv in ([BINARY, "--version"], [Envoy.binary, "--version"], [Nginx.binary, "-v"], [Haproxy.binary, "-v"]):
        print(first_line(*argv))
    print()


if __name__ == "__main__":
    main()
