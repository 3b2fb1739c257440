"""Our proxy: `serve proxy` with direct listeners, configured as a controller does it, by documents pushed to its config API.

That measures the plane and nothing else: no manifests in memory, no folder to watch.
"""
import http.client
import json
import os
import ssl
import subprocess
import time
from pathlib import Path

from peers import PORTS, Peer, cert, popen
from routes import by_host, rules

BINARY = os.environ.get("OURS", str(Path(__file__).resolve().parents[2] / "target/release/kubectl-cftunnel"))
CONFIG_PORT, PROBE_PORT = 18101, 18102
GATEWAY = {"kind": "Gateway", "namespace": "bench", "name": "bench"}
TOKEN = "bench"


def document(routes: int, layout: str) -> bytes:
    """The route set as the config API takes it."""
    rule_list = rules(routes, layout)

    def rule(index, r):
        backend = {"index": 0, "weight": 1, "target": {"backend": key(r.backend_name)}}
        return {"index": index, "matches": [{"http": {"path": {"prefix": r.prefix}}}], "backends": [backend]}

    config = {
        "format": 1,
        "listeners": [{"gateway": GATEWAY, "source": GATEWAY, "name": "http", "port": 80, "protocol": "HTTP"}],
        "routes": [{"object": {"kind": "HTTPRoute", "namespace": "bench", "name": host.partition(".")[0]}, "kind": "HTTP",
                    "hostnames": [host], "listeners": [0], "rules": [rule(i, r) for i, r in enumerate(host_rules)]}
                   for host, host_rules in by_host(rule_list).items()],
        "backends": {key(name): {"object": {"kind": "Service", "namespace": "bench", "name": name}, "port": 80,
                                 "protocol": "http1", "endpoints": [address]}
                     for name, address in {r.backend_name: r.backend for r in rule_list}.items()},
    }
    return json.dumps({"gatewayUid": "bench", "leaseTransitions": 1, "config": config}).encode()


def key(name: str) -> str:
    return f"bench/{name}:80/http1"


def connect(process: subprocess.Popen) -> http.client.HTTPSConnection:
    """A connection to the config API, as soon as there is one."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for _ in range(5000):
        connection = http.client.HTTPSConnection("127.0.0.1", CONFIG_PORT, context=context, timeout=30)
        try:
            connection.connect()
            return connection
        except OSError:
            if process.poll() is not None:
                raise SystemExit(f"our proxy ended with {process.returncode}; see its peer.log")
            time.sleep(0.002)
    raise SystemExit("our proxy takes no configuration")


def send(connection: http.client.HTTPSConnection, body: bytes):
    connection.request("PUT", "/v1/config", body, {"Authorization": f"Bearer {TOKEN}"})


def push(connection: http.client.HTTPSConnection, body: bytes):
    send(connection, body)
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise SystemExit(f"our proxy refused its configuration: {response.status} {answer[:400]!r}")


class Ours(Peer):
    name = "ours"
    supports = set(PORTS) - {"tcp"}

    def command(self, work: Path, listeners: set[str]) -> list[str]:
        crt, tls_key = cert("tls-ecdsa")
        (work / "token").write_text(TOKEN)
        argv = [BINARY, "serve", "proxy", "--no-tunnel", "--gateway-uid", "bench", "--workers", str(self.workers),
                "--config-listen", f"127.0.0.1:{CONFIG_PORT}", "--probe-listen", f"127.0.0.1:{PROBE_PORT}",
                "--tls-cert-file", crt, "--tls-key-file", tls_key, "--auth-token-file", str(work / "token"),
                "--log-level", "warn", "--grace-period", "1s"]
        for listener in sorted(listeners):
            flag = "--direct-tls" if listener.startswith("tls-") else "--direct"
            argv += [flag, f"127.0.0.1:{PORTS[listener]}"]
            if listener.startswith("tls-"):
                crt, tls_key = cert(listener)
                argv += ["--direct-tls-cert", crt, "--direct-tls-key", tls_key]
                argv += [] if listener == "tls-resume" else ["--direct-tls-no-resumption"]
        return argv

    def start(self, work, routes, layout, listeners, dynamic=False):
        argv, body = self.command(work, listeners), document(routes, layout)

        def launch():
            process = popen(argv, work)
            push(connect(process), body)
            return process
        return launch

    def can_update(self, layout):
        return True

    def update(self, process, work, routes, layout):
        body, connection = document(routes, layout), connect(process)
        # The answer comes after the change: like the other peers, ours is asked for the new route instead.
        return lambda: send(connection, body)
