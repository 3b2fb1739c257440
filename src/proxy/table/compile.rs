//! From the document to the table. Total: what cannot be served is refused rule by rule, and everything else is served.
//!
//! What a rule says is parsed here once, strictly; the request path never parses configuration again. Which rules a route has
//! and what is wrong with the objects behind them is the controller's business, not decided here (X18).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashMap;
use http::Method;
use serde::{Deserialize, Serialize};

use super::action::{self, Compiling, InvalidRule};
use super::hosts::{self, Attachment};
use super::index::Indexes;
use super::matcher::{Conditions, GrpcTarget, HeaderMatcher, Matcher, Matchers, QueryMatcher, TargetMatcher, TextMatcher};
use super::pattern::Patterns;
use super::rank::{Criteria, GrpcCriteria, HttpCriteria, PathKind, Rank};
use super::{Action, Backend, RouteEntry, RouteTable, Rule};
use crate::gateway::id::ObjectRef;
use crate::gateway::ir;

/// A table and what it could not take over from the document.
#[derive(Debug)]
pub struct Compiled {
    /// The table.
    pub table: RouteTable,
    /// Rules, or shares of rules, that fail closed or are left out; in document order.
    pub refusals: Vec<Refusal>,
}

/// A rule that is not served as written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// The route.
    pub route: ObjectRef,
    /// Index in its `spec.rules`.
    pub rule: usize,
    /// What is wrong, and what happens to the requests.
    pub reason: String,
}

/// The document as a whole cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// Written for another version of this program.
    #[error("route config has format {found}, this version reads format {expected}: upgrade the older of controller and proxy", expected = ir::FORMAT)]
    Format {
        /// The format of the document.
        found: u32,
    },
}

/// Builds the table of a document.
///
/// A rule whose match cannot be used is left out; a rule whose matches can be used but nothing else answers 500, and so does the
/// share of a backend that cannot be used. Each is reported.
///
/// # Errors
/// When the document's format is not [`ir::FORMAT`].
pub fn compile(config: &ir::RouteConfig) -> Result<Compiled, CompileError> {
    if config.format != ir::FORMAT {
        return Err(CompileError::Format { found: config.format });
    }
    let backends = config.backends.iter().map(|(key, backend)| (key.clone(), Arc::new(compile_backend(key, backend)))).collect();
    let by_key = BTreeMap::iter(&backends).collect();
    let mut compiler = Compiler::new(config, &by_key);
    for route in &config.routes {
        compiler.route(route);
    }
    let Compiler { rules, mut matchers, routes, refusals, .. } = compiler;
    matchers.shrink();
    let attachments: Vec<_> = routes.iter().map(|r| Attachment { hostnames: &r.hostnames, listeners: &r.listeners }).collect();
    let mut indexes = Indexes::default();
    let hosts = hosts::plan(&config.listeners, &attachments, |set| {
        indexes.add(set.iter().flat_map(|route| routes[*route].matchers.clone()), &matchers)
    });
    indexes.shrink();
    let table = RouteTable {
        hosts,
        indexes,
        matchers,
        rules: rules.into(),
        routes: routes.into(),
        listeners: config.listeners.clone().into(),
        backends,
        options: config.options.clone(),
        needs_trailers: config.needs_trailers(),
    };
    Ok(Compiled { table, refusals })
}

fn compile_backend(key: &ir::BackendKey, backend: &ir::Backend) -> Backend {
    Backend {
        key: key.clone(),
        object: backend.object.clone(),
        protocol: backend.protocol,
        websocket: backend.websocket,
        endpoints: backend.endpoints.as_slice().into(),
    }
}

struct Compiler<'a> {
    listeners: usize,
    backends: &'a HashMap<&'a ir::BackendKey, &'a Arc<Backend>>,
    patterns: Patterns,
    rules: Vec<Rule>,
    matchers: Matchers,
    routes: Vec<RouteEntry>,
    refusals: Vec<Refusal>,
}

impl<'a> Compiler<'a> {
    fn new(config: &ir::RouteConfig, backends: &'a HashMap<&'a ir::BackendKey, &'a Arc<Backend>>) -> Self {
        Self {
            listeners: config.listeners.len(),
            backends,
            patterns: Patterns::default(),
            rules: Vec::new(),
            matchers: Matchers::default(),
            routes: Vec::with_capacity(config.routes.len()),
            refusals: Vec::new(),
        }
    }

    fn route(&mut self, route: &ir::Route) {
        let object = &route.object;
        let known = |listener: &usize| *listener < self.listeners;
        let stray = route.listeners.iter().find(|listener| !known(listener));
        let stray = stray.map(|position| InvalidRule::Listener { position: *position, count: self.listeners });
        let listeners = match stray {
            None => route.listeners.as_slice().into(),
            Some(_) => route.listeners.iter().copied().filter(known).collect(),
        };
        let start = self.matchers.len();
        for (position, rule) in route.rules.iter().enumerate() {
            let place = Place { kind: route.kind, route: self.routes.len(), position, rule: self.rules.len() };
            let before = self.matchers.len();
            match self.matchers(place, &rule.matches) {
                Ok(()) => {
                    let rule = self.rule(object, rule, stray.clone());
                    self.rules.push(rule);
                }
                Err(error) => {
                    self.matchers.truncate(before);
                    self.refuse(object, rule.index, format!("{error}; the rule is left out"));
                }
            }
        }
        self.routes.push(RouteEntry {
            object: object.clone(),
            hostnames: route.hostnames.as_slice().into(),
            listeners,
            matchers: start..self.matchers.len(),
        });
    }

    fn rule(&mut self, object: &ObjectRef, rule: &ir::Rule, stray: Option<InvalidRule>) -> Rule {
        let mut compiling = Compiling { backends: self.backends, refused: Vec::new() };
        let compiled = match (&rule.refusal, stray) {
            // The controller has reported this one itself.
            (Some(reason), _) => Ok((Action::Refuse(reason.as_str().into()), Vec::new())),
            (None, Some(stray)) => Err(stray),
            (None, None) => action::compile(&mut compiling, rule),
        };
        for error in compiling.refused {
            self.refuse(object, rule.index, format!("{error}; its share of the requests gets 500"));
        }
        let (action, filters) = compiled.unwrap_or_else(|error| {
            self.refuse(object, rule.index, format!("{error}; requests get 500"));
            (Action::Refuse(error.to_string().into()), Vec::new())
        });
        Rule {
            route: object.clone(),
            index: rule.index,
            name: rule.name.as_deref().map(Into::into),
            action,
            filters: filters.into(),
            response_timeout: action::timeout(rule.response_timeout_ms),
        }
    }

    fn refuse(&mut self, object: &ObjectRef, rule: usize, reason: String) {
        self.refusals.push(Refusal { route: object.clone(), rule, reason });
    }

    /// Adds the matchers of a rule, up to the first that cannot be used.
    fn matchers(&mut self, place: Place, matches: &[ir::Match]) -> Result<(), InvalidRule> {
        if matches.is_empty() {
            return Err(InvalidRule::NoMatch);
        }
        for (position, m) in matches.iter().enumerate() {
            let (matcher, rank) = match (place.kind, m) {
                (ir::RouteKind::Http, ir::Match::Http(m)) => self.http(place, position, m)?,
                (ir::RouteKind::Grpc, ir::Match::Grpc(m)) => self.grpc(place, position, m)?,
                _ => return Err(InvalidRule::OtherKind),
            };
            self.matchers.push(matcher, rank);
        }
        Ok(())
    }

    fn http(&mut self, place: Place, position: usize, m: &ir::HttpMatch) -> Result<(Matcher, Rank), InvalidRule> {
        let (target, path, length) = self.path(&m.path)?;
        let method = match &m.method {
            Some(name) => Some(Method::from_bytes(name.as_bytes()).map_err(|_| InvalidRule::Method(name.clone()))?),
            None => None,
        };
        let headers = self.headers(&m.headers)?;
        let query = self.query(&m.query)?;
        let criteria = Criteria::Http(HttpCriteria {
            path,
            length: Reverse(small(length)),
            method: Reverse(method.is_some()),
            headers: Reverse(small(headers.len())),
            query: Reverse(small(query.len())),
        });
        let conditions = Conditions { method, headers, query }.boxed();
        Ok((Matcher { target, conditions, rule: small(place.rule) }, place.rank(criteria, position)))
    }

    fn grpc(&mut self, place: Place, position: usize, m: &ir::GrpcMatch) -> Result<(Matcher, Rank), InvalidRule> {
        let service = m.service.as_ref().map(|text| self.text(text)).transpose()?;
        let method = m.method.as_ref().map(|text| self.text(text)).transpose()?;
        let headers = self.headers(&m.headers)?;
        let characters = |text: &Option<ir::Text>| match text {
            Some(ir::Text::Exact(text) | ir::Text::Regex(text)) => text.chars().count(),
            None => 0,
        };
        let criteria = Criteria::Grpc(GrpcCriteria {
            service: Reverse(small(characters(&m.service))),
            method: Reverse(small(characters(&m.method))),
            headers: Reverse(small(headers.len())),
        });
        let target = TargetMatcher::Grpc(Box::new(GrpcTarget { service, method }));
        let conditions = Conditions { headers, ..Conditions::default() }.boxed();
        Ok((Matcher { target, conditions, rule: small(place.rule) }, place.rank(criteria, position)))
    }

    /// A path with its kind and its length in characters.
    fn path(&mut self, path: &ir::PathMatch) -> Result<(TargetMatcher, PathKind, usize), InvalidRule> {
        let rooted = |path: &str| if path.starts_with('/') { Ok(()) } else { Err(InvalidRule::Path(path.to_owned())) };
        Ok(match path {
            ir::PathMatch::Exact(path) => {
                rooted(path)?;
                (TargetMatcher::Exact(self.patterns.literal(path)), PathKind::Exact, path.chars().count())
            }
            ir::PathMatch::Prefix(path) => {
                rooted(path)?;
                if path.contains("//") {
                    return Err(InvalidRule::Prefix(path.to_string()));
                }
                let prefix = match path.strip_suffix('/') {
                    Some("") | None => path,
                    Some(shorter) => shorter,
                };
                (TargetMatcher::Prefix(self.patterns.literal(prefix)), PathKind::Prefix, prefix.chars().count())
            }
            ir::PathMatch::Regex(expression) => {
                (TargetMatcher::Regex(self.patterns.anchored(expression)?), PathKind::Regex, expression.chars().count())
            }
        })
    }

    fn headers(&mut self, matches: &[ir::ValueMatch]) -> Result<Box<[HeaderMatcher]>, InvalidRule> {
        let build = |m: &ir::ValueMatch| Ok(HeaderMatcher { name: action::header_name(&m.name)?, value: self.text(&m.value)? });
        matches.iter().map(build).collect()
    }

    fn query(&mut self, matches: &[ir::ValueMatch]) -> Result<Box<[QueryMatcher]>, InvalidRule> {
        let build = |m: &ir::ValueMatch| Ok(QueryMatcher { name: self.patterns.literal(&m.name), value: self.text(&m.value)? });
        matches.iter().map(build).collect()
    }

    fn text(&mut self, text: &ir::Text) -> Result<TextMatcher, InvalidRule> {
        Ok(match text {
            ir::Text::Exact(text) => TextMatcher::Exact(self.patterns.literal(text)),
            ir::Text::Regex(expression) => TextMatcher::Regex(self.patterns.anchored(expression)?),
        })
    }
}

/// Where a rule stands in the document and in the table.
#[derive(Clone, Copy)]
struct Place {
    kind: ir::RouteKind,
    route: usize,
    position: usize,
    rule: usize,
}

impl Place {
    fn rank(self, criteria: Criteria, position: usize) -> Rank {
        Rank { criteria, route: small(self.route), rule: small(self.position), position: small(position) }
    }
}

/// Half the size of what is counted in memory.
fn small(count: usize) -> u32 {
    u32::try_from(count).expect("a document of 2^32 bytes does not fit into memory")
}
