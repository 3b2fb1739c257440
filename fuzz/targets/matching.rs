//! Routing against a model that is slow and obviously right. The model reads the document match by match and asks, of each pair of
//! matches that fit, which one wins, criterion by criterion (S3 "Route Conflict Resolution", "Listener isolation"; X25, X26).

use std::cmp::Ordering;

use cftunnel::gateway::hostname::Hostname;
use cftunnel::gateway::id::{Kind, ObjectRef};
use cftunnel::gateway::ir::{self, HttpMatch, Match, PathMatch, RouteConfig, Text, ValueMatch};
use cftunnel::proxy::table::RequestKey;
use cftunnel::proxy::table::compile::compile;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

const HOSTS: [&str; 6] = ["a.test", "b.a.test", "c.b.a.test", "d.c.b.a.test", "x.test", "test"];
const HOSTNAMES: [&str; 6] = ["a.test", "b.a.test", "*.a.test", "*.b.a.test", "*.test", "c.b.a.test"];
const PATHS: [&str; 8] = ["/", "/a", "/a/", "/a/b", "/ab", "/a/b/c", "/b", "//a"];
const PREFIXES: [&str; 6] = ["/", "/a", "/a/", "/a/b", "/b", "/a/b/c"];
const NAMES: [&str; 2] = ["x-one", "x-two"];
const VALUES: [&str; 3] = ["1", "2", ""];
const METHODS: [Method; 3] = [Method::GET, Method::POST, Method::PUT];

/// Bytes as choices; zero when they are used up.
struct Choices<'d>(&'d [u8]);

impl Choices<'_> {
    fn below(&mut self, n: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first) % n
    }

    fn of<T: Clone, const N: usize>(&mut self, from: [T; N]) -> T {
        from[self.below(N)].clone()
    }

    fn some<T>(&mut self, most: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| make(self)).collect()
    }
}

fn object(kind: Kind, n: usize) -> ObjectRef {
    ObjectRef::new(kind, "n", format!("o{n}"))
}

fn values(choices: &mut Choices<'_>) -> Vec<ValueMatch> {
    let mut values: Vec<ValueMatch> = choices.some(2, |c| {
        let value = if c.below(4) == 0 { Text::Regex("[12]".to_owned()) } else { Text::Exact(c.of(VALUES).to_owned()) };
        ValueMatch { name: c.of(NAMES).to_owned(), value }
    });
    // The schema of the API makes names of one match unique.
    values.dedup_by(|a, b| a.name == b.name);
    values
}

fn config(choices: &mut Choices<'_>) -> RouteConfig {
    let mut config = RouteConfig::empty();
    config.listeners = (0..1 + choices.below(3))
        .map(|n| ir::Listener {
            gateway: object(Kind::Gateway, choices.below(2)),
            source: object(Kind::Gateway, 0),
            name: format!("l{n}"),
            port: 80,
            protocol: ir::ListenerProtocol::Http,
            hostname: (choices.below(2) == 0).then(|| choices.of(HOSTNAMES).parse().expect("a hostname")),
        })
        .collect();
    let listeners = config.listeners.len();
    config.routes = (0..1 + choices.below(4))
        .map(|n| {
            let grpc = choices.below(4) == 0;
            let hostnames: Vec<Hostname> = choices.some(2, |c| c.of(HOSTNAMES).parse().expect("a hostname"));
            let rules = choices.some(3, |c| c.some(2, |c| one_match(c, grpc)));
            ir::Route {
                object: object(if grpc { Kind::GrpcRoute } else { Kind::HttpRoute }, n),
                kind: if grpc { ir::RouteKind::Grpc } else { ir::RouteKind::Http },
                hostnames,
                listeners: (0..listeners).filter(|_| choices.below(3) > 0).collect(),
                rules: rules.into_iter().enumerate().map(rule).collect(),
            }
        })
        .collect();
    config
}

fn rule((index, matches): (usize, Vec<Match>)) -> ir::Rule {
    let refusal = Some("nothing is sent anywhere here".to_owned());
    ir::Rule { index, name: None, matches, filters: vec![], backends: vec![], response_timeout_ms: None, refusal }
}

fn one_match(c: &mut Choices<'_>, grpc: bool) -> Match {
    if grpc {
        let text = |c: &mut Choices<'_>| (c.below(2) == 0).then(|| Text::Exact(c.of(["a", "b", "c"]).to_owned()));
        return Match::Grpc(ir::GrpcMatch { service: text(c), method: text(c), headers: values(c) });
    }
    let path = match c.below(3) {
        0 => PathMatch::Exact(c.of(PATHS).into()),
        1 => PathMatch::Regex(c.of(["/a.*", "/[ab]", "/a/b"]).into()),
        _ => PathMatch::Prefix(c.of(PREFIXES).into()),
    };
    let method = (c.below(3) == 0).then(|| c.of(METHODS).to_string());
    Match::Http(HttpMatch { path, method, headers: values(c), query: values(c) })
}

struct Request {
    host: &'static str,
    path: &'static str,
    query: Option<String>,
    pairs: Vec<(&'static str, &'static str)>,
    method: Method,
    headers: HeaderMap,
    grpc: bool,
}

fn request(c: &mut Choices<'_>) -> Request {
    let mut headers = HeaderMap::new();
    for (name, value) in c.some(3, |c| (c.of(NAMES), c.of(VALUES))) {
        headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    let pairs = c.some(3, |c| (c.of(NAMES), c.of(VALUES)));
    let text: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let query = (!text.is_empty()).then(|| text.join("&"));
    Request { host: c.of(HOSTS), path: c.of(PATHS), query, pairs, method: c.of(METHODS), headers, grpc: c.below(3) == 0 }
}

/// How well a hostname fits: not at all, by default, by a wildcard of so many labels, or itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HostFit {
    Unnamed,
    Wildcard(usize),
    Itself,
}

fn host_fit(hostname: &str, host: &str) -> Option<HostFit> {
    if let Some(suffix) = hostname.strip_prefix('*') {
        let below = host.len() > suffix.len() && host.ends_with(suffix);
        return below.then(|| HostFit::Wildcard(suffix.matches('.').count()));
    }
    (hostname == host).then_some(HostFit::Itself)
}

/// Of each Gateway, only the listeners whose hostname fits best have a say.
fn owns(config: &RouteConfig, at: usize, host: &str) -> bool {
    let fit = |l: &ir::Listener| l.hostname.as_ref().map_or(Some(HostFit::Unnamed), |h| host_fit(h.as_str(), host));
    let Some(ours) = fit(&config.listeners[at]) else { return false };
    let siblings = config.listeners.iter().filter(|l| l.gateway == config.listeners[at].gateway);
    siblings.filter_map(fit).all(|theirs| theirs <= ours)
}

fn holds(text: &Text, value: &str) -> bool {
    match text {
        Text::Exact(wanted) => wanted == value,
        // The one expression there is here.
        Text::Regex(_) => value == "1" || value == "2",
    }
}

fn header_holds(wanted: &ValueMatch, headers: &HeaderMap) -> bool {
    let values: Vec<&str> = headers.get_all(&wanted.name).iter().map(|v| v.to_str().expect("a text")).collect();
    // A field that came in pieces is one list (RFC 9110 §5.3), and each piece may be meant.
    let joined = values.len() > 1 && matches!(&wanted.value, Text::Exact(w) if *w == values.join(", ") || *w == values.join(","));
    joined || values.iter().any(|value| holds(&wanted.value, value))
}

fn path_fits(path: &PathMatch, is: &str) -> bool {
    match path {
        PathMatch::Exact(wanted) => **wanted == *is,
        PathMatch::Regex(wanted) => match &**wanted {
            "/a.*" => is.starts_with("/a"),
            "/[ab]" => is == "/a" || is == "/b",
            literal => is == literal,
        },
        PathMatch::Prefix(wanted) => {
            let elements = |path: &str| path.strip_suffix('/').unwrap_or(path).split('/').map(str::to_owned).collect::<Vec<_>>();
            &**wanted == "/"
                || elements(is).starts_with(&elements(wanted))
                || format!("{is}/").starts_with(&format!("{}/", wanted.trim_end_matches('/')))
        }
    }
}

fn fits(one: &Match, request: &Request) -> bool {
    match one {
        Match::Http(m) => {
            path_fits(&m.path, request.path)
                && m.method.as_ref().is_none_or(|method| *method == request.method.as_str())
                && m.headers.iter().all(|wanted| header_holds(wanted, &request.headers))
                && m.query.iter().all(|wanted| {
                    // The first parameter of a name counts.
                    let value = request.pairs.iter().find(|(name, _)| *name == wanted.name);
                    value.is_some_and(|(_, value)| holds(&wanted.value, value))
                })
        }
        Match::Grpc(m) => {
            let mut elements = request.path.splitn(3, '/').skip(1);
            let (service, method) = (elements.next().unwrap_or(""), elements.next().unwrap_or(""));
            let whole = !service.is_empty() && !method.is_empty() && !method.contains('/');
            let part = |wanted: &Option<Text>, is: &str| wanted.as_ref().is_none_or(|wanted| whole && holds_text(wanted, is));
            request.grpc
                && part(&m.service, service)
                && part(&m.method, method)
                && m.headers.iter().all(|wanted| header_holds(wanted, &request.headers))
        }
    }
}

fn holds_text(wanted: &Text, is: &str) -> bool {
    matches!(wanted, Text::Exact(wanted) if wanted == is)
}

/// Greater wins; equal when no criterion tells them apart.
fn compare(a: &Match, b: &Match) -> Ordering {
    let length = |text: &Option<Text>| match text {
        Some(Text::Exact(t) | Text::Regex(t)) => t.len(),
        None => 0,
    };
    let path = |path: &PathMatch| match path {
        PathMatch::Exact(p) => (3, p.len()),
        PathMatch::Regex(p) => (2, p.len()),
        PathMatch::Prefix(p) => (1, p.trim_end_matches('/').len()),
    };
    match (a, b) {
        (Match::Grpc(_), Match::Http(_)) => Ordering::Greater,
        (Match::Http(_), Match::Grpc(_)) => Ordering::Less,
        (Match::Grpc(a), Match::Grpc(b)) => {
            let (sa, sb) = (length(&a.service), length(&b.service));
            sa.cmp(&sb).then(length(&a.method).cmp(&length(&b.method))).then(a.headers.len().cmp(&b.headers.len()))
        }
        (Match::Http(a), Match::Http(b)) => path(&a.path)
            .cmp(&path(&b.path))
            .then(a.method.is_some().cmp(&b.method.is_some()))
            .then(a.headers.len().cmp(&b.headers.len()))
            .then(a.query.len().cmp(&b.query.len())),
    }
}

/// The route and the rule that a request gets.
fn model<'c>(config: &'c RouteConfig, request: &Request) -> Option<(&'c ObjectRef, usize)> {
    let mut best: Option<(HostFit, &Match, &ObjectRef, usize)> = None;
    for route in &config.routes {
        let named = route.hostnames.iter().filter_map(|h| host_fit(h.as_str(), request.host)).max();
        let Some(host) = (if route.hostnames.is_empty() { Some(HostFit::Unnamed) } else { named }) else { continue };
        if !route.listeners.iter().any(|at| owns(config, *at, request.host)) {
            continue;
        }
        for rule in &route.rules {
            for one in rule.matches.iter().filter(|one| fits(one, request)) {
                // What comes first stays on a tie: documents list routes by age, and rules in their order.
                let wins =
                    best.as_ref().is_none_or(|(top, other, ..)| host.cmp(top).then(compare(one, other)) == Ordering::Greater);
                if wins {
                    best = Some((host, one, &route.object, rule.index));
                }
            }
        }
    }
    best.map(|(_, _, route, rule)| (route, rule))
}

pub(crate) fn target(data: &[u8]) {
    let mut choices = Choices(data);
    let config = config(&mut choices);
    let Ok(compiled) = compile(&config) else { return };
    for _ in 0..4 {
        let request = request(&mut choices);
        let key = RequestKey {
            host: request.host,
            path: request.path,
            query: request.query.as_deref(),
            method: &request.method,
            headers: &request.headers,
            grpc: request.grpc,
        };
        let found = compiled.table.find(&key).map(|hit| (&hit.rule.route, hit.rule.index));
        let wanted = model(&config, &request);
        assert_eq!(found, wanted, "{config:#?}\n{} {} {:?} {:?}", request.host, request.path, request.query, request.headers);
    }
}
