#!/usr/bin/env python3
"""Load matrix: every peer, every scenario, in rounds that interleave the peers.

  ./run --only python3 bench.py [--rounds 3] [--seconds 3] [--only REGEX] [--peers REGEX] [--out out/http.tsv]
"""
import argparse
import http.client
import os
import re
import socket
import ssl
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import proc
from load import h2load, wrk
from peers import PORTS, Envoy, Haproxy, Nginx
from ours import Ours


@dataclass
class Scenario:
    name: str
    listener: str
    routes: int
    run: Callable  # (seconds, work) -> Result
    single: bool = False  # only with one worker
    large: bool = False  # report CPU per GiB


def scenarios() -> list[Scenario]:
    out = []
    for routes in (1, 500, 5000):
        for connections in (64, 256) if routes == 1 else (64,):
            out.append(Scenario(f"h1-r{routes}-c{connections}", "http", routes,
                                lambda s, w, r=routes, c=connections: wrk("http", c, s, r)))
    out += [
        Scenario("h1-r1-c2", "http", 1, lambda s, w: wrk("http", 2, s)),
        Scenario("h1-rate3k", "http", 1, lambda s, w: h2load("http", 64, 1, s, w, rate=47, http1=True)),
        Scenario("h1-10m-c8", "http", 1, lambda s, w: wrk("http", 8, s, 1, "/10m"), True, True),
        Scenario("h2c-64x10", "h2c", 1, lambda s, w: h2load("h2c", 64, 10, s, w), True),
        Scenario("tls-keepalive", "tls-ecdsa", 1, lambda s, w: wrk("tls-ecdsa", 64, s), True),
        Scenario("tls-full-ecdsa", "tls-ecdsa", 1, lambda s, w: wrk("tls-ecdsa", 64, s, close=True), True),
        Scenario("tls-full-rsa", "tls-rsa", 1, lambda s, w: wrk("tls-rsa", 64, s, close=True), True),
        Scenario("tls-resumed", "tls-resume", 1, lambda s, w: wrk("tls-resume", 64, s, close=True), True),
        Scenario("tls-10m-c8", "tls-ecdsa", 1, lambda s, w: wrk("tls-ecdsa", 8, s, 1, "/10m"), True, True),
        Scenario("tcp-1k-c64", "tcp", 1, lambda s, w: wrk("tcp", 64, s), True),
        Scenario("tcp-10m-c8", "tcp", 1, lambda s, w: wrk("tcp", 8, s, 1, "/10m"), True, True),
    ]
    return out


def get(host: str, path: str = "/", port: int = PORTS["http"]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path, headers={"Host": host})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def resumes(listener: str) -> bool:
    """Whether a second TLS connection resumes the first one's session."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    session = None
    for _ in range(2):
        raw = socket.create_connection(("127.0.0.1", PORTS[listener]), timeout=5)
        with context.wrap_socket(raw, server_hostname="app-0.example.com", session=session) as tls:
            tls.sendall(b"GET / HTTP/1.1\r\nHost: app-0.example.com\r\n\r\n")
            tls.recv(65536)
            session, reused = tls.session, tls.session_reused
    return reused


def wait_serving(host: str, process, limit: float = 60.0) -> float:
    """Seconds until the host answers 200."""
    begin = time.monotonic()
    while time.monotonic() - begin < limit:
        if get(host) == 200:
            return time.monotonic() - begin
        if process.poll() is not None:
            raise SystemExit(f"the peer ended with {process.returncode}; see its peer.log")
        time.sleep(0.002)
    raise SystemExit(f"{host} not served within {limit} s")


PEERS = [Ours(1), Envoy(1), Nginx(1), Haproxy(1), Ours(2), Envoy(2), Nginx(2)]

COLUMNS = ("peer scenario round requests seconds rps p50_ms p99_ms errors cpu_s cpu_per_10k cpu_per_gib "
           "upstream_conns idle_mib loaded_mib peak_mib load_avg").split()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--seconds", type=int, default=3)
    arguments.add_argument("--only", default=".")
    arguments.add_argument("--peers", default=".")
    arguments.add_argument("--out", default="out/http.tsv")
    options = arguments.parse_args()
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    base = Path(tempfile.mkdtemp(prefix="peerbench-"))
    os.chmod(base, 0o755)
    backend = proc.start_backend(base / "backend")
    chosen = [s for s in scenarios() if re.search(options.only, s.name)]
    peers = [p for p in PEERS if re.search(options.peers, p.label())]
    if not out.exists():
        out.write_text("\t".join(COLUMNS) + "\n")
    try:
        for number in range(1, options.rounds + 1):
            for routes in sorted({s.routes for s in chosen}):
                for peer in peers:
                    cells = [s for s in chosen if s.routes == routes and s.listener in peer.supports
                             and not (s.single and peer.workers > 1)]
                    for group in by_certificate(cells):
                        run_peer(peer, routes, group, number, options.seconds, base, out)
    finally:
        proc.stop(backend)


def by_certificate(cells: list[Scenario]) -> list[list[Scenario]]:
    """One process serves all plain listeners, and one each kind of TLS."""
    kinds = sorted({c.listener for c in cells if c.listener.startswith("tls")})
    groups = [[c for c in cells if not c.listener.startswith("tls")]]
    groups += [[c for c in cells if c.listener == kind] for kind in kinds]
    return [g for g in groups if g]


def run_peer(peer, routes, cells, number, seconds, base, out):
    work = Path(tempfile.mkdtemp(prefix=f"{peer.label()}-{routes}-{number}-".replace("/", "-"), dir=base))
    os.chmod(work, 0o755)
    process = peer.start(work, routes, "shared", {s.listener for s in cells} | {"http"})()
    try:
        wait_serving(f"app-{routes - 1}.example.com", process)
        time.sleep(0.3)
        idle = proc.memory_mib(process.pid)
        for cell in cells:
            if cell.listener.startswith("tls") and resumes(cell.listener) != (cell.listener == "tls-resume"):
                raise SystemExit(f"{peer.label()} {cell.listener}: wrong TLS session resumption")
            cell.run(1, work)  # warm up
            accepts, cpu = proc.backend_accepts(), proc.cpu_seconds(process.pid)
            result = cell.run(seconds, work)
            cpu, accepts = proc.cpu_seconds(process.pid) - cpu, proc.backend_accepts() - accepts - 1
            n = max(result.requests, 1)
            row = [peer.label(), cell.name, number, result.requests, f"{result.seconds:.2f}",
                   f"{result.requests / result.seconds:.0f}", f"{result.p50_ms:.2f}", f"{result.p99_ms:.2f}",
                   result.errors, f"{cpu:.2f}", f"{cpu / n * 1e4:.3f}",
                   f"{cpu / result.bytes * 2**30:.3f}" if cell.large and result.bytes else "",
                   accepts, f"{idle:.1f}", f"{proc.memory_mib(process.pid):.1f}",
                   f"{proc.peak_mib(process.pid):.1f}", f"{os.getloadavg()[0]:.1f}"]
            line = "\t".join(map(str, row))
            print(line, flush=True)
            with out.open("a") as f:
                f.write(line + "\n")
    finally:
        proc.stop(process)


if __name__ == "__main__":
    main()
