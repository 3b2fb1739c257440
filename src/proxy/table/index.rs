//! Finds the first match of one set of routes for a request without asking all of them. Which hosts use the set is not known here.

use super::RequestKey;
use super::flat::{FlatMap, Number};
use super::matcher::{GrpcTarget, Matchers, Position, TargetMatcher, TextMatcher, split_grpc_path};

/// Up to here asking each match in order is faster than any lookup.
const FEW: usize = 6;

/// The matches of one set of routes, every list in order of precedence. Small, since it lies with the hosts that use it: the usual
/// host with one route asks nothing further.
#[derive(Clone, Copy, Debug)]
pub(super) enum Set {
    /// One that covers every request.
    Always {
        /// The match.
        position: Position,
        /// Its rule, in the table's rules.
        rule: u32,
    },
    /// Asked one by one.
    Few(List),
    /// Looked up by path; names one of [`Indexes`].
    Many(u32),
}

/// Positions of matches; most lists have one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum List {
    #[default]
    None,
    One(Position),
    /// Names one of [`Lists`].
    More(u32),
}

/// Lists of more than one.
#[derive(Debug, Default)]
struct Lists(Vec<Vec<Position>>);

/// What sets consist of.
#[derive(Debug, Default)]
pub(super) struct Indexes {
    lists: Lists,
    many: Vec<Many>,
}

/// Matches by what they ask of the path.
#[derive(Debug, Default)]
struct Many {
    grpc: GrpcIndex,
    exact: FlatMap<List>,
    regex: List,
    prefix: PrefixTree,
}

impl Indexes {
    /// Indexes the matchers at these places.
    pub(super) fn add(&mut self, places: impl Iterator<Item = usize>, matchers: &Matchers) -> Set {
        let mut positions: Vec<Position> = places.map(Position::new).collect();
        positions.sort_unstable_by_key(|position| matchers.rank(*position));
        if let [position, ..] = positions[..]
            && let Some(rule) = matchers.get(position).always()
        {
            // Whatever comes after it is never reached.
            return Set::Always { position, rule };
        }
        if positions.len() <= FEW {
            let mut few = List::None;
            positions.into_iter().for_each(|position| self.lists.push(&mut few, position));
            return Set::Few(few);
        }
        // Every list below is filled in order of precedence, so each of them is sorted.
        let (lists, mut many) = (&mut self.lists, Many::default());
        for position in positions {
            match &matchers.get(position).target {
                TargetMatcher::Exact(path) => lists.push(entry(&mut many.exact, path), position),
                TargetMatcher::Regex(_) => lists.push(&mut many.regex, position),
                TargetMatcher::Prefix(prefix) => lists.push(many.prefix.node(prefix), position),
                TargetMatcher::Grpc(target) => lists.push(many.grpc.list(target), position),
            }
        }
        many.shrink();
        self.many.push(many);
        Set::Many(number(self.many.len() - 1))
    }

    /// The match that comes first among those of a set that cover the request.
    pub(super) fn find(&self, set: Set, matchers: &Matchers, key: &RequestKey<'_>) -> Option<Position> {
        match set {
            Set::Always { position, .. } => Some(position),
            Set::Few(list) => matchers.first(self.lists.of(&list), key),
            Set::Many(many) => self.many[many as usize].find(&self.lists, matchers, key),
        }
    }

    /// Gives back what growing took too much.
    pub(super) fn shrink(&mut self) {
        self.lists.0.iter_mut().for_each(Vec::shrink_to_fit);
        self.lists.0.shrink_to_fit();
        self.many.shrink_to_fit();
    }
}

impl Lists {
    fn push(&mut self, list: &mut List, position: Position) {
        match list {
            List::None => *list = List::One(position),
            List::One(first) => {
                self.0.push(vec![*first, position]);
                *list = List::More(number(self.0.len() - 1));
            }
            List::More(more) => self.0[*more as usize].push(position),
        }
    }

    fn of<'l>(&'l self, list: &'l List) -> &'l [Position] {
        match list {
            List::None => &[],
            List::One(position) => std::slice::from_ref(position),
            List::More(more) => &self.0[*more as usize],
        }
    }
}

impl Many {
    fn find(&self, lists: &Lists, matchers: &Matchers, key: &RequestKey<'_>) -> Option<Position> {
        // What was looked up by path needs its path compared no more.
        let met = |list: &List| matchers.first_met(lists.of(list), key);
        (key.grpc.then(|| self.grpc.find(lists, matchers, key)).flatten())
            .or_else(|| self.exact.value_of(key.path).and_then(met))
            .or_else(|| matchers.first(lists.of(&self.regex), key))
            .or_else(|| self.prefix.find(key.path, met))
    }

    fn shrink(&mut self) {
        self.exact.shrink();
        self.prefix.children.shrink();
        self.grpc.methods.shrink();
        self.grpc.services.shrink();
    }
}

/// The list of a text.
fn entry<'m>(map: &'m mut FlatMap<List>, text: &str) -> &'m mut List {
    let number = map.get_or_insert(0, text, List::None);
    map.value_mut(number)
}

/// Prefixes as a tree of path elements, so that one walk along the path passes all that cover it.
#[derive(Debug, Default)]
struct PrefixTree {
    /// Stands for `/`.
    root: PrefixNode,
    /// All other nodes, by their parent and their element.
    children: FlatMap<PrefixNode>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PrefixNode {
    matches: List,
    /// None for the root and its children.
    parent: Option<Number>,
    /// Spares the leaves, which most nodes are, a lookup in vain.
    is_parent: bool,
}

impl PrefixTree {
    /// The list of a prefix.
    fn node(&mut self, prefix: &str) -> &mut List {
        let mut at = None;
        for element in elements(prefix).filter(|_| prefix != "/") {
            let parent = at;
            self.at_mut(parent).is_parent = true;
            at = Some(self.children.get_or_insert(scope(parent), element, PrefixNode { parent, ..PrefixNode::default() }));
        }
        &mut self.at_mut(at).matches
    }

    /// Goes down as far as the path leads, then asks on the way back: longest prefix first.
    fn find(&self, path: &str, first: impl Fn(&List) -> Option<Position>) -> Option<Position> {
        let mut at = None;
        for element in elements(path) {
            if !self.at(at).is_parent {
                break;
            }
            match self.children.get(scope(at), element) {
                None => break,
                child => at = child,
            }
        }
        loop {
            let node = self.at(at);
            match first(&node.matches) {
                None if at.is_some() => at = node.parent,
                found => return found,
            }
        }
    }

    fn at(&self, at: Option<Number>) -> &PrefixNode {
        at.map_or(&self.root, |number| self.children.value(number))
    }

    fn at_mut(&mut self, at: Option<Number>) -> &mut PrefixNode {
        match at {
            None => &mut self.root,
            Some(number) => self.children.value_mut(number),
        }
    }
}

/// Children are kept under the number of their parent, those of the root under zero.
fn scope(parent: Option<Number>) -> u32 {
    parent.map_or(0, Number::scope)
}

/// The elements of a path. A path that does not start with `/`, such as `*`, has none.
fn elements(path: &str) -> impl Iterator<Item = &str> {
    path.strip_prefix('/').into_iter().flat_map(|rest| rest.split('/'))
}

/// GRPCRoute matches: literal names by lookup, all others in one list.
#[derive(Debug, Default)]
struct GrpcIndex {
    /// By `/service/method`.
    methods: FlatMap<List>,
    /// By service, for matches that name no method.
    services: FlatMap<List>,
    others: List,
}

impl GrpcIndex {
    /// The list that a target belongs to.
    fn list(&mut self, target: &GrpcTarget) -> &mut List {
        match (&target.service, &target.method) {
            (Some(TextMatcher::Exact(service)), Some(TextMatcher::Exact(method))) => {
                entry(&mut self.methods, &format!("/{service}/{method}"))
            }
            (Some(TextMatcher::Exact(service)), None) => entry(&mut self.services, service),
            _ => &mut self.others,
        }
    }

    fn find(&self, lists: &Lists, matchers: &Matchers, key: &RequestKey<'_>) -> Option<Position> {
        let met = |list: &List| matchers.first_met(lists.of(list), key);
        let others = lists.of(&self.others);
        // A path of any other shape has no service and is no method, whatever a match calls one.
        let Some((service, _)) = split_grpc_path(key.path) else { return matchers.first(others, key) };
        // A literal method only adds to the length of the service, so `methods` comes before `services`; an expression may
        // be longer than both.
        let named = self.methods.value_of(key.path).and_then(met).or_else(|| self.services.value_of(service).and_then(met));
        let Some(named) = named else { return matchers.first(others, key) };
        let above = others.partition_point(|other| matchers.rank(*other) < matchers.rank(named));
        matchers.first(&others[..above], key).or(Some(named))
    }
}

fn number(position: usize) -> u32 {
    u32::try_from(position).expect("a document of 2^32 lists does not fit into memory")
}
