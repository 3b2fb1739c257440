//! Whether one match covers a request. No precedence and no lookup here.

use std::borrow::Cow;
use std::sync::Arc;

use http::header::GetAll;
use http::{HeaderName, HeaderValue, Method};
use regex::bytes::Regex;

use super::RequestKey;
use super::rank::Rank;

/// The matches of a table. A match is named by its position.
#[derive(Debug, Default)]
pub(super) struct Matchers {
    asked: Vec<Matcher>,
    /// Apart from the matchers: most lookups find one set of routes and need no rank.
    ranks: Vec<Rank>,
}

/// Names a matcher. Half the size of a `usize`, for there are lists of them all over the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position(u32);

/// One match of a rule, ready to be asked. One cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Matcher {
    /// What it asks of the path.
    pub(super) target: TargetMatcher,
    /// What it asks beyond the path.
    pub(super) conditions: Option<Box<Conditions>>,
    /// Position in the table's rules.
    pub(super) rule: u32,
}

const _: () = assert!(size_of::<Matcher>() == 64, "a matcher is one cache line");

/// What a match asks beyond the path; all must hold.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    pub(super) method: Option<Method>,
    pub(super) headers: Box<[HeaderMatcher]>,
    pub(super) query: Box<[QueryMatcher]>,
}

/// What a match asks of the path.
#[derive(Debug)]
pub(super) enum TargetMatcher {
    /// The path is this.
    Exact(Arc<str>),
    /// The path is this or continues with `/`. Without trailing slash, except `/` itself, which covers every path.
    Prefix(Arc<str>),
    /// The whole path.
    Regex(Regex),
    /// A gRPC request, by service and method.
    Grpc(Box<GrpcTarget>),
}

/// `/service/method`; without both, any gRPC request.
#[derive(Debug)]
pub(super) struct GrpcTarget {
    /// The full service name.
    pub(super) service: Option<TextMatcher>,
    /// The method name.
    pub(super) method: Option<TextMatcher>,
}

/// A literal or an anchored expression.
#[derive(Debug)]
pub(super) enum TextMatcher {
    /// Equal.
    Exact(Arc<str>),
    /// Covers the whole value.
    Regex(Regex),
}

/// A header to compare.
#[derive(Debug)]
pub(super) struct HeaderMatcher {
    pub(super) name: HeaderName,
    pub(super) value: TextMatcher,
}

/// A query parameter to compare.
#[derive(Debug)]
pub(super) struct QueryMatcher {
    pub(super) name: Arc<str>,
    pub(super) value: TextMatcher,
}

/// The first part of a match that a request does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mismatch<'m> {
    NotGrpc,
    Path,
    Method,
    Header(&'m HeaderName),
    Query(&'m str),
}

impl Matchers {
    /// Adds a matcher with its rank.
    pub(super) fn push(&mut self, matcher: Matcher, rank: Rank) {
        self.asked.push(matcher);
        self.ranks.push(rank);
    }

    pub(super) fn len(&self) -> usize {
        self.asked.len()
    }

    /// Takes back what was added last.
    pub(super) fn truncate(&mut self, matchers: usize) {
        self.asked.truncate(matchers);
        self.ranks.truncate(matchers);
    }

    pub(super) fn get(&self, position: Position) -> &Matcher {
        &self.asked[position.at()]
    }

    pub(super) fn rank(&self, position: Position) -> Rank {
        self.ranks[position.at()]
    }

    /// The first of the list that covers the request.
    pub(super) fn first(&self, list: &[Position], key: &RequestKey<'_>) -> Option<Position> {
        list.iter().copied().find(|position| self.get(*position).check(key).is_ok())
    }

    /// The first of the list whose conditions beyond the path the request meets.
    pub(super) fn first_met(&self, list: &[Position], key: &RequestKey<'_>) -> Option<Position> {
        list.iter().copied().find(|position| self.get(*position).meets(key).is_ok())
    }

    /// Gives back what growing took too much.
    pub(super) fn shrink(&mut self) {
        self.asked.shrink_to_fit();
        self.ranks.shrink_to_fit();
    }
}

impl Position {
    /// The matcher at this place in the table.
    pub(super) fn new(at: usize) -> Self {
        Self(u32::try_from(at).expect("a document of 2^32 matches does not fit into memory"))
    }

    fn at(self) -> usize {
        self.0 as usize
    }
}

impl Matcher {
    /// Asks all parts, the cheap ones first.
    pub(super) fn check(&self, key: &RequestKey<'_>) -> Result<(), Mismatch<'_>> {
        self.target.check(key)?;
        self.meets(key)
    }

    /// Asks what is asked beyond the path.
    fn meets(&self, key: &RequestKey<'_>) -> Result<(), Mismatch<'_>> {
        self.conditions.as_ref().map_or(Ok(()), |conditions| conditions.check(key))
    }

    /// The rule, when the match covers every request.
    pub(super) fn always(&self) -> Option<u32> {
        let every = matches!(&self.target, TargetMatcher::Prefix(prefix) if **prefix == *"/") && self.conditions.is_none();
        every.then_some(self.rule)
    }

    /// The prefix that the match covers; `/` when it does not match by prefix.
    pub(super) fn prefix(&self) -> &str {
        match &self.target {
            TargetMatcher::Prefix(prefix) => prefix,
            _ => "/",
        }
    }
}

impl Conditions {
    /// On the heap, for most matches have none.
    pub(super) fn boxed(self) -> Option<Box<Self>> {
        let asks = self.method.is_some() || !self.headers.is_empty() || !self.query.is_empty();
        asks.then(|| Box::new(self))
    }

    fn check(&self, key: &RequestKey<'_>) -> Result<(), Mismatch<'_>> {
        if self.method.as_ref().is_some_and(|m| m != key.method) {
            return Err(Mismatch::Method);
        }
        if let Some(missed) = self.headers.iter().find(|h| !h.matches(key.headers)) {
            return Err(Mismatch::Header(&missed.name));
        }
        if let Some(missed) = self.query.iter().find(|q| !q.matches(key.query.unwrap_or_default())) {
            return Err(Mismatch::Query(&missed.name));
        }
        Ok(())
    }
}

impl TargetMatcher {
    fn check<'m>(&self, key: &RequestKey<'_>) -> Result<(), Mismatch<'m>> {
        let covered = match self {
            Self::Exact(path) => **path == *key.path,
            Self::Prefix(prefix) => covers(prefix, key.path),
            Self::Regex(regex) => regex.is_match(key.path.as_bytes()),
            Self::Grpc(_) if !key.grpc => return Err(Mismatch::NotGrpc),
            Self::Grpc(target) => target.covers(key.path),
        };
        if covered { Ok(()) } else { Err(Mismatch::Path) }
    }
}

impl GrpcTarget {
    fn covers(&self, path: &str) -> bool {
        if self.service.is_none() && self.method.is_none() {
            return true;
        }
        let holds = |want: &Option<TextMatcher>, is: &str| want.as_ref().is_none_or(|w| w.matches(is.as_bytes()));
        split_grpc_path(path).is_some_and(|(service, method)| holds(&self.service, service) && holds(&self.method, method))
    }
}

fn covers(prefix: &str, path: &str) -> bool {
    prefix == "/" || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Service and method of a gRPC path; nothing for a path of any other shape.
pub(super) fn split_grpc_path(path: &str) -> Option<(&str, &str)> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    (!service.is_empty() && !method.is_empty() && !method.contains('/')).then_some((service, method))
}

impl TextMatcher {
    fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(text) => text.as_bytes() == value,
            Self::Regex(regex) => regex.is_match(value),
        }
    }
}

impl HeaderMatcher {
    /// A header that was sent several times matches when any of its values does, or when the literal is the list of them
    /// joined by commas (RFC 9110 §5.3: both forms mean the same to the sender).
    fn matches(&self, headers: &http::HeaderMap) -> bool {
        let values = headers.get_all(&self.name);
        values.iter().any(|value| self.value.matches(value.as_bytes()))
            || matches!(&self.value, TextMatcher::Exact(text) if joins_to(&values, text))
    }
}

/// Whether several values, joined by `,` or `, `, are the text.
fn joins_to(values: &GetAll<'_, HeaderValue>, text: &str) -> bool {
    if values.iter().nth(1).is_none() {
        return false;
    }
    [", ", ","].into_iter().any(|comma| {
        let mut rest = Some(text.as_bytes());
        for (i, value) in values.iter().enumerate() {
            let separator = if i == 0 { "" } else { comma };
            rest = rest.and_then(|r| r.strip_prefix(separator.as_bytes())).and_then(|r| r.strip_prefix(value.as_bytes()));
        }
        rest.is_some_and(<[u8]>::is_empty)
    })
}

impl QueryMatcher {
    /// The first parameter of the name decides. Names and values are decoded as in HTML forms (`%XX`, `+`), as Go's
    /// `url.ParseQuery` does, on which Gateway API implementations agree; a broken escape voids its pair.
    fn matches(&self, query: &str) -> bool {
        query
            .split('&')
            .filter(|pair| !pair.is_empty() && !pair.contains(';'))
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .filter(|(name, value)| well_escaped(name) && well_escaped(value))
            .find(|(name, _)| decoded(name).eq(self.name.bytes()))
            .is_some_and(|(_, value)| match &self.value {
                TextMatcher::Exact(text) => decoded(value).eq(text.bytes()),
                TextMatcher::Regex(regex) => regex.is_match(&decoded_whole(value)),
            })
    }
}

fn well_escaped(text: &str) -> bool {
    text.split('%').skip(1).all(|rest| matches!(rest.as_bytes(), [a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit()))
}

/// The bytes that a well escaped text stands for.
fn decoded(text: &str) -> impl Iterator<Item = u8> {
    let mut bytes = text.bytes();
    std::iter::from_fn(move || match bytes.next()? {
        b'+' => Some(b' '),
        b'%' => {
            let mut digit = || char::from(bytes.next()?).to_digit(16).and_then(|d| u8::try_from(d).ok());
            Some(digit()? << 4 | digit()?)
        }
        byte => Some(byte),
    })
}

/// As [`decoded`], copied only when there is something to decode: expressions need the bytes in one piece.
fn decoded_whole(text: &str) -> Cow<'_, [u8]> {
    if text.contains(['%', '+']) { decoded(text).collect() } else { Cow::Borrowed(text.as_bytes()) }
}
