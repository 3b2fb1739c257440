//! What a served configuration looks like to its user: listeners, hostnames, where each leads, and one request to try. Pure: a
//! view of the document and of its compiled table, nothing is decided here.

use std::net::SocketAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::Serialize;

use crate::commands::output::{Block, Cell, Tone, View, shell_quote};
use crate::gateway::hostname::Hostname;
use crate::gateway::ir::{self, RouteConfig};
use crate::proxy::table::{RequestKey, RouteTable};

/// The tables that `serve local` prints.
#[derive(Debug, Serialize)]
pub(super) struct Overview {
    listeners: Vec<ListenerRow>,
    routes: Vec<RouteRow>,
}

#[derive(Debug, Serialize)]
struct ListenerRow {
    gateway: String,
    listener: String,
    protocol: ir::ListenerProtocol,
    port: u16,
    hostname: String,
    routes: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RouteRow {
    gateway: String,
    listener: String,
    hostname: String,
    r#match: String,
    route: String,
    leads_to: String,
    endpoints: String,
    #[serde(skip)]
    tone: Tone,
}

const ANY: &str = "*";

impl Overview {
    /// The view of `config`.
    pub(super) fn new(config: &RouteConfig) -> Self {
        let listeners = config.listeners.iter().enumerate().map(|(index, listener)| ListenerRow {
            gateway: format!("{}/{}", listener.gateway.namespace(), listener.gateway.name()),
            listener: listener.name.clone(),
            protocol: listener.protocol,
            port: listener.port,
            hostname: listener.hostname.as_ref().map_or_else(|| ANY.to_owned(), ToString::to_string),
            routes: config.routes.iter().filter(|r| r.listeners.contains(&index)).count(),
        });
        let mut routes = Vec::new();
        for (index, listener) in config.listeners.iter().enumerate() {
            for route in config.routes.iter().filter(|r| r.listeners.contains(&index)) {
                for hostname in hostnames(listener.hostname.as_ref(), &route.hostnames) {
                    routes.extend(rows(config, listener, route, &hostname));
                }
            }
        }
        Self { listeners: listeners.collect(), routes }
    }
}

impl View for Overview {
    fn blocks(&self, _wide: bool) -> Vec<Block> {
        let protocol = |p: ir::ListenerProtocol| match p {
            ir::ListenerProtocol::Http => "HTTP",
            ir::ListenerProtocol::Https => "HTTPS",
        };
        let listeners = self.listeners.iter().map(|l| {
            vec![
                l.gateway.as_str().into(),
                l.listener.as_str().into(),
                protocol(l.protocol).into(),
                l.port.to_string().into(),
                l.hostname.as_str().into(),
                l.routes.to_string().into(),
            ]
        });
        let mut last = (String::new(), String::new());
        let routes = self.routes.iter().map(|r| {
            // The listener only where it changes: what repeats hides what differs.
            let this = (r.gateway.clone(), r.listener.clone());
            let listener = if this == last { String::new() } else { format!("{}:{}", r.gateway, r.listener) };
            last = this;
            vec![
                listener.into(),
                r.hostname.as_str().into(),
                r.r#match.as_str().into(),
                r.route.as_str().into(),
                Cell::new(r.leads_to.as_str(), r.tone),
                r.endpoints.as_str().into(),
            ]
        });
        vec![
            Block::Table {
                header: vec!["GATEWAY", "LISTENER", "PROTOCOL", "PORT", "HOSTNAME", "ROUTES"],
                rows: listeners.collect(),
            },
            Block::Gap,
            Block::Table {
                header: vec!["LISTENER", "HOSTNAME", "MATCH", "ROUTE", "LEADS TO", "ENDPOINTS"],
                rows: routes.collect(),
            },
        ]
    }

    fn names(&self) -> Vec<String> {
        self.routes.iter().map(|r| r.route.clone()).collect()
    }
}

/// Hostnames that a route serves on a listener; one `None` for any.
fn hostnames(listener: Option<&Hostname>, route: &[Hostname]) -> Vec<Option<Hostname>> {
    match (listener, route) {
        (listener, []) => vec![listener.cloned()],
        (None, names) => names.iter().cloned().map(Some).collect(),
        (Some(listener), names) => names.iter().filter_map(|n| n.intersect(listener)).map(Some).collect(),
    }
}

fn rows(config: &RouteConfig, listener: &ir::Listener, route: &ir::Route, hostname: &Option<Hostname>) -> Vec<RouteRow> {
    let mut rows = Vec::new();
    for rule in &route.rules {
        let (leads_to, endpoints, tone) = leads_to(config, rule);
        for r#match in &rule.matches {
            rows.push(RouteRow {
                gateway: format!("{}/{}", listener.gateway.namespace(), listener.gateway.name()),
                listener: listener.name.clone(),
                hostname: hostname.as_ref().map_or_else(|| ANY.to_owned(), ToString::to_string),
                r#match: match_text(r#match),
                route: format!("{}/{}", route.object.namespace(), route.object.name()),
                leads_to: leads_to.clone(),
                endpoints: endpoints.clone(),
                tone,
            });
        }
    }
    rows
}

/// A match in one line: `GET PathPrefix /cart, header x-canary: 1`.
pub(crate) fn match_text(r#match: &ir::Match) -> String {
    let value = |v: &ir::ValueMatch, what: &str| match &v.value {
        ir::Text::Exact(text) => format!(", {what} {}: {text}", v.name),
        ir::Text::Regex(text) => format!(", {what} {} ~ {text}", v.name),
    };
    match r#match {
        ir::Match::Http(m) => {
            let path = match &m.path {
                ir::PathMatch::Exact(path) => format!("Exact {path}"),
                ir::PathMatch::Prefix(path) => format!("PathPrefix {path}"),
                ir::PathMatch::Regex(path) => format!("RegularExpression {path}"),
            };
            let method = m.method.as_ref().map(|m| format!("{m} ")).unwrap_or_default();
            let headers: String = m.headers.iter().map(|h| value(h, "header")).collect();
            let query: String = m.query.iter().map(|q| value(q, "query")).collect();
            format!("{method}{path}{headers}{query}")
        }
        ir::Match::Grpc(m) => {
            let part = |t: &Option<ir::Text>| match t {
                None => ANY.to_owned(),
                Some(ir::Text::Exact(text)) => text.clone(),
                Some(ir::Text::Regex(text)) => format!("~{text}"),
            };
            let headers: String = m.headers.iter().map(|h| value(h, "header")).collect();
            format!("gRPC {}/{}{headers}", part(&m.service), part(&m.method))
        }
    }
}

/// Where a rule leads, through which endpoints, and whether that is well.
fn leads_to(config: &RouteConfig, rule: &ir::Rule) -> (String, String, Tone) {
    if let Some(reason) = &rule.refusal {
        return (format!("500: {reason}"), String::new(), Tone::Bad);
    }
    let redirect = rule.filters.iter().find_map(|f| if let ir::Filter::Redirect(r) = f { Some(r) } else { None });
    if let Some(redirect) = redirect {
        return (redirect_text(redirect), String::new(), Tone::Plain);
    }
    let total: u64 = rule.backends.iter().map(|b| u64::from(b.weight)).sum();
    if total == 0 {
        return ("500: no backend with a weight".to_owned(), String::new(), Tone::Bad);
    }
    let (mut targets, mut endpoints, mut tone) = (Vec::new(), Vec::new(), Tone::Plain);
    for entry in rule.backends.iter().filter(|b| b.weight > 0) {
        let share =
            if u64::from(entry.weight) == total { String::new() } else { format!(" {}", percent(entry.weight.into(), total)) };
        match &entry.target {
            ir::Target::Invalid(reason) => {
                targets.push(format!("500{share}: {reason}"));
                tone = Tone::Bad;
            }
            ir::Target::Backend(key) => {
                let backend = config.backends.get(key);
                let name = backend
                    .map_or_else(|| key.to_string(), |b| format!("{}/{}:{}", b.object.namespace(), b.object.name(), b.port));
                targets.push(format!("{name}{share}"));
                let ready = backend.map_or(&[][..], |b| &b.endpoints);
                endpoints.push(endpoints_text(ready));
                if ready.is_empty() && tone == Tone::Plain {
                    tone = Tone::Warn;
                }
            }
        }
    }
    (targets.join(", "), endpoints.join(", "), tone)
}

fn endpoints_text(ready: &[SocketAddr]) -> String {
    match ready {
        [] => "none (503)".to_owned(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first} +{}", rest.len()),
    }
}

/// A share of a whole, without decimals where there are none.
pub(crate) fn percent(part: u64, total: u64) -> String {
    let tenths = (part * 1000 + total / 2) / total.max(1);
    if tenths.is_multiple_of(10) { format!("{}%", tenths / 10) } else { format!("{}.{}%", tenths / 10, tenths % 10) }
}

fn redirect_text(redirect: &ir::Redirect) -> String {
    let scheme = redirect.scheme.as_deref().map(|s| format!("{s}://")).unwrap_or_default();
    let host = redirect.hostname.as_deref().unwrap_or(if scheme.is_empty() { "" } else { "(host)" });
    let port = if let ir::RedirectPort::Explicit(port) = redirect.port { format!(":{port}") } else { String::new() };
    let path = match &redirect.path {
        None => "(path)".to_owned(),
        Some(ir::PathRewrite::Full(path)) => path.clone(),
        Some(ir::PathRewrite::Prefix(path)) => format!("{path}…"),
    };
    format!("{} to {scheme}{host}{port}{path}", redirect.status)
}

/// A request that one of the rules answers, as a line for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Example {
    method: String,
    host: String,
    path: String,
    query: Option<String>,
    headers: Vec<(String, String)>,
    grpc: bool,
}

impl Example {
    /// The best request to try: one that ends at a backend with endpoints, plain before special. Only what the table itself sends
    /// to the rule it was made from.
    pub(super) fn find(config: &RouteConfig, table: &RouteTable) -> Option<Self> {
        let mut best: Option<(u32, Self)> = None;
        for route in &config.routes {
            for listener in route.listeners.iter().filter_map(|i| config.listeners.get(*i)) {
                for hostname in hostnames(listener.hostname.as_ref(), &route.hostnames) {
                    for rule in &route.rules {
                        let served = served(config, rule);
                        for m in &rule.matches {
                            let Some(example) = Self::of(m, hostname.as_ref()) else { continue };
                            let cost = served + example.cost();
                            if best.as_ref().is_none_or(|(c, _)| cost < *c) && example.reaches(table, route, rule) {
                                best = Some((cost, example));
                            }
                        }
                    }
                }
            }
        }
        best.map(|(_, example)| example)
    }

    /// The curl line for a listener at `base`, such as `http://127.0.0.1:8080`.
    pub(super) fn curl(&self, base: &str) -> String {
        let mut line = String::from("curl -i");
        if self.grpc {
            line.push_str(" --http2-prior-knowledge --data-binary ''");
        } else if self.method == "HEAD" {
            line.push_str(" --head");
        } else if self.method != "GET" {
            line.push_str(&format!(" -X {}", shell_quote(&self.method)));
        }
        line.push_str(&format!(" -H {}", shell_quote(&format!("Host: {}", self.host))));
        for (name, value) in &self.headers {
            line.push_str(&format!(" -H {}", shell_quote(&format!("{name}: {value}"))));
        }
        format!("{line} {}", shell_quote(&format!("{base}{}", self.target())))
    }

    /// The curl line through the real edge, where the host is in DNS.
    pub(super) fn public_curl(&self) -> String {
        Self { headers: self.headers.clone(), ..self.clone() }.curl(&format!("https://{}", self.host)).replacen(
            &format!(" -H {}", shell_quote(&format!("Host: {}", self.host))),
            "",
            1,
        )
    }

    /// The host.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    fn target(&self) -> String {
        let query = self.query.as_ref().map(|q| format!("?{q}")).unwrap_or_default();
        format!("{}{query}", self.path)
    }

    fn of(r#match: &ir::Match, hostname: Option<&Hostname>) -> Option<Self> {
        let host = hostname.map_or_else(
            || "example.com".to_owned(),
            |h| h.wildcard_suffix().map_or_else(|| h.to_string(), |suffix| format!("demo{suffix}")),
        );
        let exact = |values: &[ir::ValueMatch]| -> Option<Vec<(String, String)>> {
            values
                .iter()
                .map(|v| if let ir::Text::Exact(text) = &v.value { Some((v.name.clone(), text.clone())) } else { None })
                .collect()
        };
        match r#match {
            ir::Match::Http(m) => {
                let (ir::PathMatch::Exact(path) | ir::PathMatch::Prefix(path)) = &m.path else { return None };
                let query = exact(&m.query)?.into_iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>().join("&");
                Some(Self {
                    method: m.method.clone().unwrap_or_else(|| "GET".to_owned()),
                    host,
                    path: path.to_string(),
                    query: (!query.is_empty()).then_some(query),
                    headers: exact(&m.headers)?,
                    grpc: false,
                })
            }
            ir::Match::Grpc(m) => {
                let part = |t: &Option<ir::Text>, any: &str| match t {
                    None => Some(any.to_owned()),
                    Some(ir::Text::Exact(text)) => Some(text.clone()),
                    Some(ir::Text::Regex(_)) => None,
                };
                let mut headers =
                    vec![("content-type".to_owned(), "application/grpc".to_owned()), ("te".to_owned(), "trailers".to_owned())];
                headers.extend(exact(&m.headers)?);
                Some(Self {
                    method: "POST".to_owned(),
                    host,
                    path: format!("/{}/{}", part(&m.service, "demo.Echo")?, part(&m.method, "Say")?),
                    query: None,
                    headers,
                    grpc: true,
                })
            }
        }
    }

    /// How special the request is: lower is better to show.
    fn cost(&self) -> u32 {
        let special = self.headers.len() + usize::from(self.query.is_some());
        u32::from(self.grpc) * 50 + u32::from(self.method != "GET") * 5 + u32::try_from(special).unwrap_or(u32::MAX / 1000) * 10
    }

    /// Whether the table sends the request to the rule.
    fn reaches(&self, table: &RouteTable, route: &ir::Route, rule: &ir::Rule) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) else { return false };
            headers.append(name, value);
        }
        let Ok(method) = self.method.parse::<Method>() else { return false };
        // What a URL cannot carry as it is would reach the table as something else.
        if !self.target().bytes().all(|b| b.is_ascii_graphic() && b != b'#') {
            return false;
        }
        let key = RequestKey {
            host: &self.host,
            path: &self.path,
            query: self.query.as_deref(),
            method: &method,
            headers: &headers,
            grpc: self.grpc,
        };
        table.find(&key).is_some_and(|hit| hit.rule.route == route.object && hit.rule.index == rule.index)
    }
}

/// How far a rule is from an answer of a backend: 0 served, 100 redirected, 200 without endpoints, 300 refused.
fn served(config: &RouteConfig, rule: &ir::Rule) -> u32 {
    if rule.refusal.is_some() {
        return 300;
    }
    if rule.filters.iter().any(|f| matches!(f, ir::Filter::Redirect(_))) {
        return 100;
    }
    let mut targets = rule.backends.iter().filter(|b| b.weight > 0).peekable();
    if targets.peek().is_none() {
        return 300;
    }
    let ready = |t: &ir::Target| match t {
        ir::Target::Invalid(_) => false,
        ir::Target::Backend(key) => config.backends.get(key).is_some_and(|b| !b.endpoints.is_empty()),
    };
    if targets.all(|b| ready(&b.target)) { 0 } else { 200 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::id::{Kind, ObjectRef};
    use crate::proxy::table::compile::compile;

    fn config(listener: Option<&str>, hostnames: &[&str], matches: Vec<ir::Match>) -> RouteConfig {
        let host = |h: &str| h.parse::<Hostname>().expect("a hostname");
        let gateway = ObjectRef::new(Kind::Gateway, "shop", "edge");
        let key = ir::BackendKey("shop/web:80/http1".into());
        let backend = ir::Backend {
            object: ObjectRef::new(Kind::Service, "shop", "web"),
            port: 80,
            protocol: ir::BackendProtocol::Http1,
            websocket: false,
            endpoints: vec![SocketAddr::from(([127, 0, 0, 1], 3000))],
        };
        let kind = if matches!(matches[0], ir::Match::Grpc(_)) { ir::RouteKind::Grpc } else { ir::RouteKind::Http };
        RouteConfig {
            listeners: vec![ir::Listener {
                gateway: gateway.clone(),
                source: gateway,
                name: "http".into(),
                port: 80,
                protocol: ir::ListenerProtocol::Http,
                hostname: listener.map(host),
            }],
            routes: vec![ir::Route {
                object: ObjectRef::new(Kind::HttpRoute, "shop", "web"),
                kind,
                hostnames: hostnames.iter().copied().map(host).collect(),
                listeners: vec![0],
                rules: vec![ir::Rule {
                    index: 0,
                    name: None,
                    matches,
                    filters: Vec::new(),
                    backends: vec![ir::WeightedBackend {
                        index: 0,
                        weight: 1,
                        target: ir::Target::Backend(key.clone()),
                        filters: Vec::new(),
                    }],
                    response_timeout_ms: None,
                    refusal: None,
                }],
            }],
            backends: [(key, backend)].into(),
            ..RouteConfig::empty()
        }
    }

    fn http(path: ir::PathMatch) -> ir::HttpMatch {
        ir::HttpMatch { path, method: None, headers: Vec::new(), query: Vec::new() }
    }

    fn curl(config: &RouteConfig) -> Option<String> {
        let table = compile(config).expect("a table").table;
        Example::find(config, &table).map(|e| e.curl("http://127.0.0.1:8080"))
    }

    #[test]
    fn the_line_fits_the_match_and_the_shell() {
        let value = |name: &str, text: &str| ir::ValueMatch { name: name.into(), value: ir::Text::Exact(text.into()) };
        let special = ir::HttpMatch {
            method: Some("PUT".into()),
            headers: vec![value("X-Who", "it's me")],
            query: vec![value("a", "b")],
            ..http(ir::PathMatch::Exact("/x y".into()))
        };
        let fits = ir::HttpMatch { path: ir::PathMatch::Exact("/x".into()), ..special.clone() };
        assert_eq!(
            curl(&config(None, &["a.example.com"], vec![ir::Match::Http(fits)])).as_deref(),
            Some(r"curl -i -X PUT -H 'Host: a.example.com' -H 'X-Who: it'\''s me' 'http://127.0.0.1:8080/x?a=b'")
        );
        assert_eq!(curl(&config(None, &["a.example.com"], vec![ir::Match::Http(special)])), None, "no URL has a blank");
        let any = config(Some("*.example.com"), &[], vec![ir::Match::Http(http(ir::PathMatch::Prefix("/".into())))]);
        assert_eq!(curl(&any).as_deref(), Some("curl -i -H 'Host: demo.example.com' http://127.0.0.1:8080/"));
    }

    #[test]
    fn an_expression_is_tried_by_nobody() {
        let only = config(None, &[], vec![ir::Match::Http(http(ir::PathMatch::Regex("/[a-z]+".into())))]);
        assert_eq!(curl(&only), None);
    }

    #[test]
    fn hostnames_are_those_of_route_and_listener_together() {
        let overview = Overview::new(&config(
            Some("*.example.com"),
            &["a.example.com", "other.org", "*.b.example.com"],
            vec![ir::Match::Http(http(ir::PathMatch::Prefix("/".into())))],
        ));
        let names: Vec<&str> = overview.routes.iter().map(|r| r.hostname.as_str()).collect();
        assert_eq!(names, ["a.example.com", "*.b.example.com"]);
        assert_eq!(overview.routes[0].leads_to, "shop/web:80");
        assert_eq!(overview.routes[0].endpoints, "127.0.0.1:3000");
    }

    #[test]
    fn shares_have_decimals_only_where_they_need_them() {
        assert_eq!(percent(1, 2), "50%");
        assert_eq!(percent(1, 3), "33.3%");
        assert_eq!(percent(0, 3), "0%");
        assert_eq!(percent(0, 0), "0%");
        assert_eq!(percent(1, 1_000_000), "0%");
    }
}
