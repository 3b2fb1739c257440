//! Finds the first match of one set for a request without asking all of them. Which hosts use the set is not known here.

use std::collections::HashMap;
use std::sync::Arc;

use super::RequestKey;
use super::matcher::{GrpcTarget, Matchers, Position, Positions, TargetMatcher, TextMatcher, split_grpc_path};

/// Up to here asking each match in order is faster than any lookup.
const FEW: usize = 6;

/// Matches of one set of routes, every list in order of precedence.
#[derive(Debug)]
pub(super) enum Index {
    /// Asked one by one.
    Few(Positions),
    /// Looked up by path.
    Many(Box<Many>),
}

/// Matches by what they ask of the path.
#[derive(Debug, Default)]
pub(super) struct Many {
    grpc: GrpcIndex,
    exact: HashMap<Arc<str>, Positions>,
    regex: Positions,
    prefix: PrefixTree,
}

impl Index {
    /// Indexes the matchers at these places.
    pub(super) fn new(places: impl Iterator<Item = usize>, matchers: &Matchers) -> Self {
        let mut positions: Vec<Position> = places.map(Position::new).collect();
        positions.sort_unstable_by_key(|position| matchers.rank(*position));
        if positions.len() <= FEW {
            let mut few = Positions::default();
            positions.into_iter().for_each(|position| few.push(position));
            return Self::Few(few);
        }
        // Every list below is filled in order of precedence, so each of them is sorted.
        let mut many = Many::default();
        for position in positions {
            match &matchers.get(position).target {
                TargetMatcher::Exact(path) => many.exact.entry(Arc::clone(path)).or_default().push(position),
                TargetMatcher::Regex(_) => many.regex.push(position),
                TargetMatcher::Prefix(prefix) => many.prefix.insert(prefix, position),
                TargetMatcher::Grpc(target) => many.grpc.insert(target, position),
            }
        }
        Self::Many(Box::new(many))
    }

    /// The match that comes first among those that cover the request.
    pub(super) fn find(&self, matchers: &Matchers, key: &RequestKey<'_>) -> Option<Position> {
        let first = |list: &Positions| matchers.first(list.as_slice(), key);
        match self {
            Self::Few(list) => first(list),
            Self::Many(many) => (key.grpc.then(|| many.grpc.find(matchers, key)).flatten())
                .or_else(|| many.exact.get(key.path).and_then(first))
                .or_else(|| first(&many.regex))
                .or_else(|| many.prefix.find(key.path, first)),
        }
    }
}

/// Prefixes as a tree of path elements, so that one walk along the path passes all that cover it.
#[derive(Debug)]
struct PrefixTree {
    /// The first node is the root, which stands for `/`.
    nodes: Vec<PrefixNode>,
}

#[derive(Debug, Default)]
struct PrefixNode {
    matches: Positions,
    #[expect(clippy::box_collection, reason = "most nodes are leaves, and a leaf should not carry an empty map")]
    children: Option<Box<HashMap<Box<str>, usize>>>,
    /// The root is its own.
    parent: usize,
}

impl Default for PrefixTree {
    fn default() -> Self {
        Self { nodes: vec![PrefixNode::default()] }
    }
}

impl PrefixTree {
    fn insert(&mut self, prefix: &str, position: Position) {
        let mut at = 0;
        for element in elements(prefix).filter(|_| prefix != "/") {
            at = self.child(at, element).unwrap_or_else(|| {
                let child = self.nodes.len();
                self.nodes.push(PrefixNode { parent: at, ..PrefixNode::default() });
                self.nodes[at].children.get_or_insert_default().insert(element.into(), child);
                child
            });
        }
        self.nodes[at].matches.push(position);
    }

    /// Goes down as far as the path leads, then asks on the way back: longest prefix first.
    fn find(&self, path: &str, first: impl Fn(&Positions) -> Option<Position>) -> Option<Position> {
        let mut at = 0;
        for element in elements(path) {
            match self.child(at, element) {
                Some(child) => at = child,
                None => break,
            }
        }
        loop {
            match first(&self.nodes[at].matches) {
                None if at > 0 => at = self.nodes[at].parent,
                found => return found,
            }
        }
    }

    fn child(&self, at: usize, element: &str) -> Option<usize> {
        self.nodes[at].children.as_ref()?.get(element).copied()
    }
}

/// The elements of a path. A path that does not start with `/`, such as `*`, has none.
fn elements(path: &str) -> impl Iterator<Item = &str> {
    path.strip_prefix('/').into_iter().flat_map(|rest| rest.split('/'))
}

/// GRPCRoute matches: literal names by lookup, all others in one list.
#[derive(Debug, Default)]
struct GrpcIndex {
    /// By `/service/method`.
    methods: HashMap<Box<str>, Positions>,
    /// By service, for matches that name no method.
    services: HashMap<Arc<str>, Positions>,
    others: Positions,
}

impl GrpcIndex {
    fn insert(&mut self, target: &GrpcTarget, position: Position) {
        let list = match (&target.service, &target.method) {
            (Some(TextMatcher::Exact(service)), Some(TextMatcher::Exact(method))) => {
                self.methods.entry(format!("/{service}/{method}").into()).or_default()
            }
            (Some(TextMatcher::Exact(service)), None) => self.services.entry(Arc::clone(service)).or_default(),
            _ => &mut self.others,
        };
        list.push(position);
    }

    fn find(&self, matchers: &Matchers, key: &RequestKey<'_>) -> Option<Position> {
        let listed = |list: &Positions| matchers.first(list.as_slice(), key);
        let others = self.others.as_slice();
        // A literal method only adds to the length of the service, so `methods` comes before `services`; an expression may
        // be longer than both.
        let service = split_grpc_path(key.path).map_or("", |(service, _)| service);
        let named = self.methods.get(key.path).and_then(listed).or_else(|| self.services.get(service).and_then(listed));
        let Some(named) = named else { return matchers.first(others, key) };
        let above = others.partition_point(|other| matchers.rank(*other) < matchers.rank(named));
        matchers.first(&others[..above], key).or(Some(named))
    }
}
