#!/usr/bin/env python3
"""Configuration cost: start with N routes, then change the set by one route while idle.

  ./run --only python3 reload.py [--rounds 3] [--peers REGEX] [--out out/http-reload.tsv]

start_s     process start until the last route answers 200
start_cpu_s CPU of the process tree by then
update_s    from handing over the changed set (one more route) until it answers 200
update_cpu_s CPU the tree spent on it (a worker that drains counts when it has ended)
mib, mib_after  memory (PSS) before and 1.5 s after the update
"""
import argparse
import os
import re
import tempfile
import time
from pathlib import Path

import proc
from bench import PEERS, wait_serving

COLUMNS = "peer layout routes round start_s start_cpu_s mib update_s update_cpu_s mib_after peak_mib".split()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--peers", default="/1")
    arguments.add_argument("--routes", default="1,500,5000")
    arguments.add_argument("--layouts", default="shared,distinct")
    arguments.add_argument("--out", default="out/http-reload.tsv")
    options = arguments.parse_args()
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    if not out.exists():
        out.write_text("\t".join(COLUMNS) + "\n")
    base = Path(tempfile.mkdtemp(prefix="peerbench-"))
    os.chmod(base, 0o755)
    backend = proc.start_backend(base / "backend")
    try:
        for number in range(1, options.rounds + 1):
            for layout in options.layouts.split(","):
                for routes in map(int, options.routes.split(",")):
                    for peer in PEERS:
                        if re.search(options.peers, peer.label()):
                            measure(peer, layout, routes, number, base, out)
    finally:
        proc.stop(backend)


def measure(peer, layout, routes, number, base, out):
    work = base / f"{peer.label()}-{layout}-{routes}-{number}".replace("/", "-")
    work.mkdir()
    dynamic = peer.can_update(layout)
    launch = peer.start(work, routes, layout, {"http"}, dynamic)
    begin = time.monotonic()
    process = launch()
    row = [peer.label(), layout, routes, number]
    try:
        wait_serving(f"app-{routes - 1}.example.com", process)
        row += [f"{time.monotonic() - begin:.3f}"]
        time.sleep(1.0)
        before = proc.cpu_seconds(process.pid)
        row += [f"{before:.2f}", f"{proc.memory_mib(process.pid):.1f}"]
        if dynamic:
            apply = peer.update(process, work, routes + 1, layout)
            begin = time.monotonic()
            apply()
            wait_serving(f"app-{routes}.example.com", process)
            row += [f"{time.monotonic() - begin:.3f}"]
            time.sleep(1.5)
            row += [f"{proc.cpu_seconds(process.pid) - before:.2f}", f"{proc.memory_mib(process.pid):.1f}"]
        else:
            row += ["", "", ""]
        row += [f"{proc.peak_mib(process.pid):.1f}"]
    finally:
        proc.stop(process)
    line = "\t".join(map(str, row))
    print(line, flush=True)
    with out.open("a") as f:
        f.write(line + "\n")


if __name__ == "__main__":
    main()
