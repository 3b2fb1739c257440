//! `find` and `explain` against a model that is slow and obviously right: it reads the document, looks at every match of every
//! route and compares them in full. It shares no code with the table.

use std::cmp::Reverse;

use http::Method;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;

/// What the model answers: the route's name, the rule's index, and the prefix.
type Answer = Option<(String, usize, String)>;

fn model(config: &ir::RouteConfig, request: &Request) -> Answer {
    let owners = owners(config, &request.host);
    let mut best = None;
    for (order, route) in config.routes.iter().enumerate() {
        let Some(host) = host_score(&route.hostnames, &request.host) else { continue };
        if !route.listeners.iter().any(|l| owners.contains(l)) {
            continue;
        }
        for rule in &route.rules {
            for (position, m) in rule.matches.iter().enumerate() {
                let Some((score, prefix)) = score(m, request) else { continue };
                let rank = (host, score, Reverse((order, rule.index, position)));
                if best.as_ref().is_none_or(|(top, _)| rank > *top) {
                    best = Some((rank, (route.object.name().to_owned(), rule.index, prefix)));
                }
            }
        }
    }
    best.map(|(_, answer)| answer)
}

fn owners(config: &ir::RouteConfig, host: &str) -> Vec<usize> {
    let score = |l: &ir::Listener| host_score(l.hostname.as_slice(), host);
    let best = |gateway: &ObjectRef| config.listeners.iter().filter(|l| l.gateway == *gateway).filter_map(score).max();
    let owns = |l: &ir::Listener| score(l).is_some() && score(l) == best(&l.gateway);
    (0..config.listeners.len()).filter(|at| owns(&config.listeners[*at])).collect()
}

/// Zero without hostnames, then the labels of the wildcard, then 1,000 for the host itself.
fn host_score(hostnames: &[Hostname], host: &str) -> Option<usize> {
    let one = |h: &Hostname| match h.as_str().strip_prefix("*.") {
        Some(suffix) => {
            let labels: Vec<&str> = host.split('.').collect();
            let wanted: Vec<&str> = suffix.split('.').collect();
            (labels.len() > wanted.len() && labels.ends_with(&wanted)).then_some(wanted.len())
        }
        None => (h.as_str() == host).then_some(1000),
    };
    if hostnames.is_empty() { Some(0) } else { hostnames.iter().filter_map(one).max() }
}

/// Kind, then the criteria of S3 from the first to the last; greater wins.
type Score = (bool, [usize; 5]);

fn score(m: &ir::Match, request: &Request) -> Option<(Score, String)> {
    match m {
        ir::Match::Grpc(m) => {
            let elements: Vec<&str> = request.path.split('/').collect();
            let (service, method) = match elements[..] {
                ["", service, method] if !service.is_empty() && !method.is_empty() => (Some(service), Some(method)),
                _ => (None, None),
            };
            let part = |want: &Option<ir::Text>, is: Option<&str>| want.as_ref().is_none_or(|w| is.is_some_and(|is| text(w, is)));
            let length = |want: &Option<ir::Text>| want.as_ref().map_or(0, |w| written(w).chars().count());
            let covered = request.grpc && part(&m.service, service) && part(&m.method, method) && headers(&m.headers, request);
            covered.then(|| ((true, [length(&m.service), length(&m.method), m.headers.len(), 0, 0]), "/".to_owned()))
        }
        ir::Match::Http(m) => {
            let (kind, length, prefix) = path(&m.path, &request.path)?;
            let covered = m.method.as_ref().is_none_or(|method| method == request.method.as_str())
                && headers(&m.headers, request)
                && m.query.iter().all(|q| query(&q.name, request).is_some_and(|value| text(&q.value, &value)));
            let criteria = [kind, length, usize::from(m.method.is_some()), m.headers.len(), m.query.len()];
            covered.then_some(((false, criteria), prefix))
        }
    }
}

fn path(m: &ir::PathMatch, path: &str) -> Option<(usize, usize, String)> {
    match m {
        ir::PathMatch::Exact(want) => (*path == **want).then(|| (3, want.len(), "/".to_owned())),
        ir::PathMatch::Regex(want) => whole(want, path).then(|| (2, want.len(), "/".to_owned())),
        ir::PathMatch::Prefix(want) => {
            let want = want.trim_end_matches('/');
            let covered = want.is_empty() || path == want || path.starts_with(&format!("{want}/"));
            covered.then(|| (1, want.len(), if want.is_empty() { "/".to_owned() } else { want.to_owned() }))
        }
    }
}

fn headers(wanted: &[ir::ValueMatch], request: &Request) -> bool {
    wanted.iter().all(|want| {
        let values: Vec<&str> = request.headers.get_all(&want.name).iter().filter_map(|v| v.to_str().ok()).collect();
        let joined = matches!(want.value, ir::Text::Exact(_)).then(|| [values.join(", "), values.join(",")]);
        let joined = joined.filter(|_| !values.is_empty());
        values.iter().any(|v| text(&want.value, v)) || joined.is_some_and(|j| j.iter().any(|v| text(&want.value, v)))
    })
}

fn query(name: &str, request: &Request) -> Option<String> {
    let decode = |text: &str| percent_encoding::percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pairs = request.query.as_deref()?.split('&').filter(|pair| !pair.is_empty());
    let mut decoded = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(n, v)| (decode(n), decode(v)));
    decoded.find(|(n, _)| n == name).map(|(_, value)| value)
}

fn written(text: &ir::Text) -> &str {
    match text {
        ir::Text::Exact(text) | ir::Text::Regex(text) => text,
    }
}

fn text(want: &ir::Text, is: &str) -> bool {
    match want {
        ir::Text::Exact(want) => want == is,
        ir::Text::Regex(want) => whole(want, is),
    }
}

fn whole(expression: &str, value: &str) -> bool {
    regex::Regex::new(&format!("^(?:{expression})$")).expect("an expression").is_match(value)
}

const HOSTNAMES: [&str; 9] = [
    "example.com",
    "a.example.com",
    "b.a.example.com",
    "*.example.com",
    "*.a.example.com",
    "*.com",
    "*.b.a.example.com",
    "other.org",
    "*.org",
];

const HOSTS: [&str; 9] = [
    "example.com",
    "a.example.com",
    "b.a.example.com",
    "c.b.a.example.com",
    "x.example.com",
    "y.com",
    "other.org",
    "z.other.org",
    "net",
];

const PATHS: [&str; 9] = ["/", "/a", "/a/", "/a/b", "/a/b/c", "/ab", "/svc/Do", "/svc", "/a//b"];

fn optional<T: Clone + std::fmt::Debug>(values: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    proptest::option::weighted(0.4, values)
}

fn texts(literals: &'static [&'static str], expressions: &'static [&'static str]) -> impl Strategy<Value = ir::Text> {
    prop_oneof![3 => select(literals).prop_map(is), 1 => select(expressions).prop_map(like)]
}

fn values(names: &'static [&'static str]) -> impl Strategy<Value = Vec<ir::ValueMatch>> {
    let value = (select(names), texts(&["1", "2", "1, 2", "a b"], &["[12]", ".*", "1|a b"]));
    proptest::collection::vec(value.prop_map(|(name, value)| named(name, value)), 0..3)
}

fn http_match() -> impl Strategy<Value = ir::HttpMatch> {
    let path = prop_oneof![
        2 => select(&PATHS[..]).prop_map(|p| ir::PathMatch::Exact(p.into())),
        4 => select(&PATHS[..8]).prop_map(|p| ir::PathMatch::Prefix(p.into())),
        1 => select(&["/a.*", "/(a|ab)", "/a/[a-z]+", "/.*", "/svc/D."][..]).prop_map(|p| ir::PathMatch::Regex(p.into())),
    ];
    let method = optional(select(&["GET", "POST"][..]).prop_map(str::to_owned));
    (path, method, values(&["x-a", "x-b"]), values(&["q", "r"])).prop_map(|(path, method, headers, query)| ir::HttpMatch {
        path,
        method,
        headers,
        query,
    })
}

fn grpc_match() -> impl Strategy<Value = ir::GrpcMatch> {
    let service = optional(texts(&["svc", "a"], &["s.*", "svc|a", "[as]vc"]));
    let method = optional(texts(&["Do", "b"], &["D.*", "[A-Z]o"]));
    (service, method, values(&["x-a", "x-b"])).prop_map(|(service, method, headers)| ir::GrpcMatch { service, method, headers })
}

fn route(listeners: usize) -> impl Strategy<Value = ir::Route> {
    let hostnames = subsequence(&HOSTNAMES[..], 0..3).prop_shuffle();
    let listeners = subsequence((0..listeners).collect::<Vec<_>>(), 0..=listeners);
    let matches = prop_oneof![
        3 => proptest::collection::vec(proptest::collection::vec(http_match().prop_map(ir::Match::Http), 1..3), 1..5)
            .prop_map(|rules| (ir::RouteKind::Http, rules)),
        1 => proptest::collection::vec(proptest::collection::vec(grpc_match().prop_map(ir::Match::Grpc), 1..3), 1..5)
            .prop_map(|rules| (ir::RouteKind::Grpc, rules)),
    ];
    (hostnames, listeners, matches).prop_map(|(hostnames, listeners, (kind, rules))| ir::Route {
        object: ObjectRef::new(Kind::HttpRoute, "ns", ""),
        kind,
        hostnames: hostnames.into_iter().map(host).collect(),
        listeners,
        rules: rules.into_iter().enumerate().map(|(index, matches)| rule(index, matches)).collect(),
    })
}

fn document() -> impl Strategy<Value = ir::RouteConfig> {
    let listener_of = (select(&["g1", "g2", "g3"][..]), optional(select(&HOSTNAMES[..])));
    proptest::collection::vec(listener_of, 1..6).prop_flat_map(|listeners| {
        proptest::collection::vec(route(listeners.len()), 0..14).prop_map(move |routes| {
            let mut config = Document::with(&listeners).0;
            config.routes = routes;
            for (at, route) in config.routes.iter_mut().enumerate() {
                route.object = ObjectRef::new(route.object.kind, route.object.namespace(), format!("r{at}"));
            }
            config
        })
    })
}

fn request() -> impl Strategy<Value = Request> {
    let header = (select(&["x-a", "x-b"][..]), select(&["1", "2", "a b", "3"][..]));
    let query = select(&["q=1", "q=2&r=1", "r=a+b&q=%31", "q", "q=1,%202", "r=%61%20b&q=2"][..]);
    (
        select(&HOSTS[..]),
        select(&PATHS[..]),
        optional(query),
        select(&[Method::GET, Method::POST][..]),
        proptest::collection::vec(header, 0..4),
        any::<bool>(),
    )
        .prop_map(|(host, path, query, method, headers, grpc)| {
            let request = Request { query: query.map(Into::into), method, grpc, ..Request::get(&format!("{host}{path}")) };
            headers.into_iter().fold(request, |request, (name, value)| request.header(name, value))
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn find_and_explain_agree_with_the_model(config in document(), requests in proptest::collection::vec(request(), 12)) {
        let Compiled { table, refusals } = compile(&config).expect("this format");
        prop_assert_eq!(refusals, []);
        for request in requests {
            let key = request.key();
            let answer = |hit: super::super::Hit<'_>| (hit.rule.route.name().to_owned(), hit.rule.index, hit.prefix.to_owned());
            let found = table.find(&key).map(answer);
            prop_assert_eq!(&found, &model(&config, &request), "{:?}", request);
            let (explanation, hit) = table.explain_with_hit(&key);
            prop_assert_eq!(&hit.map(answer), &found);
            prop_assert_eq!(explanation.chosen().map(|c| (c.route.name().to_owned(), c.rule)), found.map(|(name, rule, _)| (name, rule)));
        }
    }

    #[test]
    fn nothing_in_a_document_or_a_request_panics(expression in ".{0,40}", host in ".{0,20}", path in "/?.{0,20}", query in "[&=%+;a-f0-9]{0,30}") {
        let m = ir::HttpMatch { path: ir::PathMatch::Regex(expression.as_str().into()), ..with_query(prefix("/"), &expression, like(&expression)) };
        let document = Document::open()
            .http("r", &[], vec![vec![m], vec![with_query(prefix(&path), "a", is("b"))], vec![exact(&expression)]])
            .grpc("g", &[], vec![vec![call(Some(like(&expression)), Some(is(&path)))]]);
        let table = document.compiled().table;
        for grpc in [false, true] {
            let request = Request { host: host.clone(), path: path.clone(), query: Some(query.clone()), grpc, ..Request::get("x/") };
            let found = table.find(&request.key()).map(|hit| hit.rule.index);
            prop_assert_eq!(table.explain(&request.key()).chosen().map(|c| c.rule), found);
        }
    }
}
