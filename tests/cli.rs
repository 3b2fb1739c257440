//! The real binary, as its users run it: help, offline verbs, and the serving ones on loopback. No network beyond it, and
//! nothing of the environment.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use assert_cmd::assert::OutputAssertExt as _;
use tokio::time::Instant;

/// The secret in every fixture, in the forms in which it could leak.
const SECRETS: [&str; 3] =
    ["secret-secret-secret-secret-1234", "c2VjcmV0LXNlY3JldC1zZWNyZXQ", "MlZqY21WMExYTmxZM0psZEMxelpXTnlaWFF0"];

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-cftunnel"));
    command.env_clear().current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

#[test]
fn offline_verbs() {
    trycmd::TestCases::new()
        .register_bin("kubectl-cftunnel", PathBuf::from(env!("CARGO_BIN_EXE_kubectl-cftunnel")))
        .case("tests/cli/*.trycmd");
}

#[test]
fn usage_names_kubectl_when_kubectl_has_started_the_plugin() {
    let output = command().env("_", "/usr/local/bin/kubectl").args(["token", "parse", "-h"]).output().expect("runs");
    assert!(String::from_utf8_lossy(&output.stdout).contains("Usage: kubectl cftunnel token parse"), "{output:?}");
}

#[test]
fn the_token_is_read_from_a_pipe_and_the_secret_stays_in() {
    for file in ["token.txt", "token-cut.txt", "token-command.txt", "credentials.json", "secret.yaml"] {
        let path = Path::new("tests/cli").join(file);
        for format in ["table", "wide", "json", "yaml", "name"] {
            for key in ["tunnel-token", "missing"] {
                let stdin = fs::File::open(Path::new(env!("CARGO_MANIFEST_DIR")).join(&path)).expect("a fixture");
                let output = command().args(["token", "parse", "--key", key, "-o", format]).stdin(stdin).output().expect("runs");
                let said = [output.stdout, output.stderr].concat();
                assert_silent(&String::from_utf8_lossy(&said));
            }
        }
        for verb in [&["lint"][..], &["route", "trace", "GET", "http://x/"], &["serve", "local", "--edge", "127.0.0.1:1"]] {
            let mut command = command();
            command.args(verb).arg("--from-file").arg(&path).env("TUNNEL_TOKEN", fs::read_to_string(&path).expect("a fixture"));
            let output = command.output().expect("runs");
            assert_silent(&String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
        }
    }
}

fn assert_silent(text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut child = command().args(["generate", "crds"]).stdout(Stdio::piped()).spawn().expect("runs");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}

#[test]
fn no_colour_without_a_terminal_and_none_when_asked() {
    let always = command().args(["--color", "always", "lint", "-f", "tests/cli/broken.yaml"]).output().expect("runs");
    assert!(always.stdout.contains(&0x1b));
    let auto = command().args(["lint", "-f", "tests/cli/broken.yaml"]).output().expect("runs");
    assert!(!auto.stdout.contains(&0x1b) && !auto.stderr.contains(&0x1b));
}

#[test]
fn names_from_a_manifest_cannot_drive_the_terminal() {
    let manifest = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: \"a\\u001b[31mb\"}\nspec: {parentRefs: [{name: \"x\\u0007\"}]}\n";
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.yaml"), manifest).expect("a file");
    let output = command().args(["lint", "-f"]).arg(folder.path()).output().expect("runs");
    assert!(!output.stdout.contains(&0x1b) && !output.stdout.contains(&0x07), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn manifests_may_come_from_a_pipe() {
    let text = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/quickstart/10-gateway.yaml")).expect("an example");
    let mut child = command().args(["lint", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("runs");
    child.stdin.take().expect("piped").write_all(&text).expect("written");
    let output = child.wait_with_output().expect("ends");
    output.assert().code(0);
}

/// A running `serve local`.
struct Local {
    child: Child,
    folder: tempfile::TempDir,
    /// What it has printed so far; grows in the background.
    stderr: std::sync::Arc<std::sync::Mutex<String>>,
    stdout: String,
    port: u16,
}

impl Local {
    fn start(example: &str, more: &[&str]) -> Self {
        Self::listen(example, &["--listen", "127.0.0.1:0"], more)
    }

    fn listen(example: &str, listen: &[&str], more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example)).expect("an example") {
            let path = entry.expect("readable").path();
            fs::copy(&path, folder.path().join(path.file_name().expect("a name"))).expect("copied");
        }
        let mut child = command()
            .args(["serve", "local", "--demo-backends", "--admin", "127.0.0.1:0", "--from-file"])
            .arg(folder.path())
            .args(listen)
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("runs");
        let stderr = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
        let (mut pipe, log) = (child.stderr.take().expect("piped"), std::sync::Arc::clone(&stderr));
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut chunk) {
                log.lock().expect("not poisoned").push_str(&String::from_utf8_lossy(&chunk[..n]));
            }
        });
        let mut stdout = String::new();
        let mut reader = BufReader::new(child.stdout.take().expect("piped"));
        while !stdout.contains("\ncurl ") {
            let read = reader.read_line(&mut stdout).expect("utf-8");
            assert!(read > 0, "ended early:\n{stdout}\n{}", stderr.lock().expect("not poisoned"));
        }
        // What it says later needs a reader, too: a closed pipe ends the process.
        std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        let port = stdout.rsplit("http://127.0.0.1:").next().and_then(|t| t.split('/').next()).and_then(|p| p.parse().ok());
        Self { child, folder, stderr, port: port.expect("a port in the curl line"), stdout }
    }

    fn said(&self) -> String {
        self.stderr.lock().expect("not poisoned").clone()
    }

    /// One request; the whole answer.
    fn get(&self, host: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// What `/readyz` says.
    fn ready(&self) -> String {
        let admin = self.stdout.split("http://").nth(1).and_then(|t| t.split('/').next()).expect("an address");
        let mut stream = TcpStream::connect(admin).expect("connects");
        write!(stream, "GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("written");
        let mut ready = String::new();
        stream.read_to_string(&mut ready).expect("an answer");
        ready
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Asks until the answer fits: an edit takes a moment.
    fn until(&self, host: &str, path: &str, fits: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let answer = self.get(host, path);
            if fits(&answer) {
                return answer;
            }
            assert!(start.elapsed() < Duration::from_secs(15), "{answer}\n{}", self.said());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    fn wait(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.code();
            }
            assert!(start.elapsed() < Duration::from_secs(20), "does not end:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn serve_local_prints_where_hostnames_lead_and_a_line_that_works() {
    let mut local = Local::start("quickstart", &[]);
    assert!(
        local.stdout.contains("shop/edge:shop") && local.stdout.contains("shop/web:80 90%, shop/web-next:80 10%"),
        "{}",
        local.stdout
    );
    let line = local.stdout.lines().last().expect("a line").to_owned();
    assert_eq!(line, format!("curl -i -H 'Host: shop.example.com' http://127.0.0.1:{}/", local.port));
    assert_eq!(local.stdout.matches("curl ").count(), 1);
    let answer = local.get("shop.example.com", "/x?y=1");
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("\"path\": \"/x\"") && answer.contains("\"query\": \"y=1\""),
        "{answer}"
    );
    let answer = local.get("shop.example.com", "/api/orders");
    assert!(
        answer.contains("\"backend\": \"shop/api:8080\"")
            && answer.contains("\"path\": \"/v1/orders\"")
            && answer.contains("h2c"),
        "{answer}"
    );
    assert!(local.get("store.example.com", "/a").contains("location: https://shop.example.com/a"));
    assert!(local.get("nobody.example.com", "/").starts_with("HTTP/1.1 404"));
    let ready = local.ready();
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    local.signal("INT");
    assert_eq!(local.wait(), Some(0), "{}", local.said());
    assert!(local.said().contains("draining"), "{}", local.said());
}

#[test]
fn without_a_tunnel_the_direct_listener_is_all_there_is() {
    let mut local = Local::listen("quickstart", &["--no-tunnel", "--direct", "127.0.0.1:0"], &["--workers", "2"]);
    assert!(local.get("shop.example.com", "/x").contains("\"path\": \"/x\""));
    assert!(local.ready().starts_with("HTTP/1.1 200"), "ready without any connection to an edge");
    let shop = fs::read_to_string(local.file("30-shop.yaml")).expect("an example");
    fs::write(local.file("30-shop.yaml"), shop.replace("value: /api}", "value: /rest}")).expect("rewritten in place");
    local.until("shop.example.com", "/rest/a", |a| a.contains("\"path\": \"/v1/a\""));
    local.signal("TERM");
    assert_eq!(local.wait(), Some(0), "{}", local.said());
    assert!(!local.said().contains("Connection registered"), "{}", local.said());
}

#[test]
fn a_direct_listener_stands_beside_the_tunnel() {
    let local = Local::start("quickstart", &["--direct", "127.0.0.1:0"]);
    let direct = local.stdout.lines().find_map(|line| line.strip_prefix("curl")?.split("http://127.0.0.1:").nth(1));
    let direct: u16 = direct.and_then(|t| t.split('/').next()).and_then(|p| p.parse().ok()).expect("a port");
    local.until("shop.example.com", "/x", |a| a.contains("\"path\": \"/x\""));
    let mut stream = TcpStream::connect(("127.0.0.1", direct)).expect("connects");
    write!(stream, "GET /y HTTP/1.1\r\nHost: shop.example.com\r\nConnection: close\r\n\r\n").expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains("\"path\": \"/y\"") && answer.contains("x-forwarded-for"), "{answer}\n{}", local.said());
    local.until("shop.example.com", "/z", |_| local.said().contains("Connection registered"));
}

#[test]
fn edits_serve_and_broken_ones_keep_what_serves() {
    let mut local = Local::start("quickstart", &[]);
    let shop = fs::read_to_string(local.file("30-shop.yaml")).expect("an example");
    fs::write(local.file("30-shop.yaml"), shop.replace("value: /api}", "value: /rest}")).expect("rewritten in place");
    local.until("shop.example.com", "/rest/a", |a| a.contains("\"path\": \"/v1/a\""));
    fs::write(local.file("next"), shop.replace("value: /api}", "value: /soap}")).expect("written");
    fs::rename(local.file("next"), local.file("30-shop.yaml")).expect("renamed over");
    local.until("shop.example.com", "/soap/a", |a| a.contains("\"path\": \"/v1/a\""));

    fs::write(local.file("30-shop.yaml"), "kind: [").expect("broken");
    let start = Instant::now();
    while !local.said().contains("its last good version keeps serving") {
        assert!(start.elapsed() < Duration::from_secs(15), "{}", local.said());
        assert!(local.get("shop.example.com", "/soap/a").contains("\"path\": \"/v1/a\""));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(local.said().contains("30-shop.yaml:1: not YAML"), "{}", local.said());
    assert!(local.get("shop.example.com", "/soap/a").contains("\"path\": \"/v1/a\""));

    fs::remove_file(local.file("30-shop.yaml")).expect("removed");
    local.until("shop.example.com", "/soap/a", |a| a.starts_with("HTTP/1.1 404"));
    local.signal("TERM");
    assert_eq!(local.wait(), Some(0), "{}", local.said());
}

#[test]
fn an_edit_costs_no_request_and_no_connection() {
    let local = Local::start("quickstart", &[]);
    let shop = fs::read_to_string(local.file("30-shop.yaml")).expect("an example");
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", local.port)).expect("connects"));
    let start = Instant::now();
    let mut edits = 0_u32;
    while start.elapsed() < Duration::from_secs(3) {
        if start.elapsed() > Duration::from_millis(500) * edits {
            edits += 1;
            fs::write(
                local.file("30-shop.yaml"),
                format!("{shop}# {edits}\n").replace("weight: 90", &format!("weight: {}", 90 + edits)),
            )
            .expect("edited");
        }
        write!(stream.get_mut(), "GET /n HTTP/1.1\r\nHost: shop.example.com\r\n\r\n").expect("the connection stays");
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            assert!(stream.read_line(&mut head).expect("a head") > 0, "cut:\n{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        for line in head.lines() {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        assert!(length > 0, "{head}");
        stream.read_exact(&mut vec![0; length]).expect("a body");
    }
    assert!(local.said().matches("applied the edit").count() >= 3, "{}", local.said());
}

#[test]
fn a_second_signal_ends_at_once() {
    let mut local = Local::start("quickstart", &["--grace-period", "2m"]);
    // A request that never ends holds the drain up.
    let mut stream = TcpStream::connect(("127.0.0.1", local.port)).expect("connects");
    write!(stream, "POST / HTTP/1.1\r\nHost: shop.example.com\r\nContent-Length: 10\r\n\r\nabc").expect("written");
    std::thread::sleep(Duration::from_millis(500));
    local.signal("TERM");
    let start = Instant::now();
    while !local.said().contains("draining") {
        assert!(start.elapsed() < Duration::from_secs(5), "{}", local.said());
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(local.child.try_wait().expect("a child").is_none(), "it waits for the request");
    local.signal("TERM");
    assert_eq!(local.wait(), Some(130), "{}", local.said());
}

#[test]
fn a_grpc_route_is_served_over_http2_and_its_line_works() {
    let local = Local::start("grpc", &["--tunnel-protocol", "auto"]);
    let line = local.stdout.lines().last().expect("a line");
    assert!(line.contains("--http2-prior-knowledge") && line.contains("/helloworld.Greeter/SayHello"), "{line}");
    let start = Instant::now();
    while local.said().matches("Connection registered").count() < 4 {
        assert!(start.elapsed() < Duration::from_secs(10), "{}", local.said());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(local.said().contains("transport=http2") && !local.said().contains("transport=quic"), "{}", local.said());
}

#[test]
fn pinned_quic_refuses_a_grpc_route() {
    command()
        .args([
            "serve",
            "local",
            "--demo-backends",
            "--listen",
            "127.0.0.1:0",
            "--tunnel-protocol",
            "quic",
            "--from-file",
            "examples/grpc",
        ])
        .assert()
        .code(2);
}

#[test]
fn a_plane_without_configuration_ends_and_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = rcgen::generate_simple_self_signed(vec!["plane".to_owned()]).expect("a certificate");
    fs::write(folder.path().join("tls.crt"), key.cert.pem()).expect("written");
    fs::write(folder.path().join("tls.key"), key.signing_key.serialize_pem()).expect("written");
    fs::write(folder.path().join("auth"), "let-me-in").expect("written");
    let output = command()
        .args(["serve", "proxy", "--gateway-uid", "u", "--config-listen", "127.0.0.1:0", "--probe-listen", "127.0.0.1:0"])
        .args(["--config-wait", "1", "--edge", "127.0.0.1:1", "--token-file", "tests/cli/token.txt"])
        .arg("--tls-cert-file")
        .arg(folder.path().join("tls.crt"))
        .arg("--tls-key-file")
        .arg(folder.path().join("tls.key"))
        .arg("--auth-token-file")
        .arg(folder.path().join("auth"))
        .arg("--state-dir")
        .arg(folder.path().join("state"))
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("no configuration has arrived within 1 s"), "{said}");
    assert!(!said.contains("Connection") && !said.contains("let-me-in"), "{said}");
    assert_silent(&said);
}
