//! One borrowed shape per concept of the Gateway API, whichever kind it is written in. The generated types repeat parentRefs,
//! listeners, backendRefs and filters per kind; everything after this file knows each of them once. Schema defaults are filled
//! in here, since objects from files have not passed an API server. No verdicts.

use std::collections::BTreeMap;

use super::gateway_api::{gateway, grpc_route, http_route, listener_set, tcp_route, tls_route, udp_route};

/// The group of Gateways, ListenerSets and routes.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// A parentRef of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the fields of the Gateway API type of the same name")]
pub struct ParentRef<'a> {
    pub group: &'a str,
    pub kind: &'a str,
    pub namespace: Option<&'a str>,
    pub name: &'a str,
    pub section_name: Option<&'a str>,
    pub port: Option<i32>,
}

macro_rules! parent_ref_view {
    ($($type:path),+ $(,)?) => {$(
        impl<'a> From<&'a $type> for ParentRef<'a> {
            fn from(r: &'a $type) -> Self {
                Self {
                    group: r.group.as_deref().unwrap_or(GATEWAY_GROUP),
                    kind: r.kind.as_deref().unwrap_or("Gateway"),
                    namespace: r.namespace.as_deref(),
                    name: &r.name,
                    section_name: r.section_name.as_deref().filter(|s| !s.is_empty()),
                    port: r.port,
                }
            }
        }
    )+};
}

parent_ref_view!(
    http_route::HttpRouteParentRefs,
    grpc_route::GrpcRouteParentRefs,
    tls_route::TlsRouteParentRefs,
    tcp_route::TcpRouteParentRefs,
    udp_route::UdpRouteParentRefs,
);

/// A backendRef.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields of the Gateway API type of the same name")]
pub struct BackendRef<'a> {
    pub group: &'a str,
    pub kind: &'a str,
    pub namespace: Option<&'a str>,
    pub name: &'a str,
    pub port: Option<i32>,
    pub weight: i32,
}

macro_rules! backend_ref_view {
    ($($type:path),+ $(,)?) => {$(
        impl<'a> From<&'a $type> for BackendRef<'a> {
            fn from(r: &'a $type) -> Self {
                Self {
                    group: r.group.as_deref().unwrap_or(""),
                    kind: r.kind.as_deref().unwrap_or("Service"),
                    namespace: r.namespace.as_deref(),
                    name: &r.name,
                    port: r.port,
                    weight: r.weight.unwrap_or(1),
                }
            }
        }
    )+};
}

backend_ref_view!(http_route::HttpRouteRulesBackendRefs, grpc_route::GrpcRouteRulesBackendRefs);

/// Which namespaces something is open to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the values of the Gateway API field `from`")]
pub enum FromNamespaces {
    All,
    Same,
    Selector,
    None,
}

/// A label selector.
#[derive(Clone, Debug)]
pub struct Selector<'a> {
    /// Labels that must be there, all of them.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// Further requirements, all of them.
    pub expressions: Vec<Expression<'a>>,
}

/// One requirement of a [`Selector`].
#[derive(Clone, Copy, Debug)]
pub struct Expression<'a> {
    /// The label.
    pub key: &'a str,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`; anything else does not parse.
    pub operator: &'a str,
    /// The values, for the first two.
    pub values: &'a [String],
}

macro_rules! selector {
    ($selector:expr) => {
        Selector {
            labels: $selector.match_labels.as_ref(),
            expressions: $selector
                .match_expressions
                .iter()
                .flatten()
                .map(|e| Expression { key: &e.key, operator: &e.operator, values: e.values.as_deref().unwrap_or_default() })
                .collect(),
        }
    };
}

/// A listener of a Gateway or a ListenerSet.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the fields of the Gateway API type of the same name")]
pub struct Listener<'a> {
    pub name: &'a str,
    pub port: i32,
    pub protocol: &'a str,
    pub hostname: Option<&'a str>,
    /// Group and kind of `allowedRoutes.kinds`; none when the protocol decides.
    pub kinds: Option<Vec<(&'a str, &'a str)>>,
    pub from: FromNamespaces,
    pub selector: Option<Selector<'a>>,
    pub passthrough: bool,
    pub certificates: Vec<ObjectReference<'a>>,
    pub has_tls_options: bool,
    pub has_filters: bool,
}

/// A reference to an object by group, kind and name.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields of the Gateway API type of the same name")]
pub struct ObjectReference<'a> {
    pub group: &'a str,
    pub kind: &'a str,
    pub namespace: Option<&'a str>,
    pub name: &'a str,
}

macro_rules! listener_view {
    ($type:path, $from:path, $mode:path) => {
        impl<'a> From<&'a $type> for Listener<'a> {
            fn from(l: &'a $type) -> Self {
                use $from as F;
                use $mode as M;
                let namespaces = l.allowed_routes.as_ref().and_then(|r| r.namespaces.as_ref());
                let kinds = l.allowed_routes.as_ref().and_then(|r| r.kinds.as_ref()).filter(|k| !k.is_empty());
                Self {
                    name: &l.name,
                    port: l.port,
                    protocol: &l.protocol,
                    hostname: l.hostname.as_deref().filter(|h| !h.is_empty()),
                    kinds: kinds
                        .map(|kinds| kinds.iter().map(|k| (k.group.as_deref().unwrap_or(GATEWAY_GROUP), &*k.kind)).collect()),
                    from: match namespaces.and_then(|n| n.from.as_ref()) {
                        Some(F::All) => FromNamespaces::All,
                        Some(F::Selector) => FromNamespaces::Selector,
                        Some(F::Same) | None => FromNamespaces::Same,
                    },
                    selector: namespaces.and_then(|n| n.selector.as_ref()).map(|s| selector!(s)),
                    passthrough: l.tls.as_ref().is_some_and(|t| t.mode == Some(M::Passthrough)),
                    certificates: l
                        .tls
                        .iter()
                        .flat_map(|t| t.certificate_refs.iter().flatten())
                        .map(|c| ObjectReference {
                            group: c.group.as_deref().unwrap_or(""),
                            kind: c.kind.as_deref().unwrap_or("Secret"),
                            namespace: c.namespace.as_deref(),
                            name: &c.name,
                        })
                        .collect(),
                    has_tls_options: l.tls.iter().any(|t| t.options.iter().flatten().next().is_some()),
                    has_filters: l.filters.as_ref().is_some_and(|f| f.requests.iter().flatten().next().is_some()),
                }
            }
        }
    };
}

listener_view!(gateway::GatewayListeners, gateway::GatewayListenersAllowedRoutesNamespacesFrom, gateway::GatewayListenersTlsMode);
listener_view!(
    listener_set::ListenerSetListeners,
    listener_set::ListenerSetListenersAllowedRoutesNamespacesFrom,
    listener_set::ListenerSetListenersTlsMode
);

/// Which namespaces' ListenerSets a Gateway takes; none by default (GEP-1713).
pub fn allowed_listeners(spec: &gateway::GatewaySpec) -> (FromNamespaces, Option<Selector<'_>>) {
    use gateway::GatewayAllowedListenersNamespacesFrom as F;
    let namespaces = spec.allowed_listeners.as_ref().and_then(|a| a.namespaces.as_ref());
    let from = match namespaces.and_then(|n| n.from.as_ref()) {
        Some(F::All) => FromNamespaces::All,
        Some(F::Selector) => FromNamespaces::Selector,
        Some(F::Same) => FromNamespaces::Same,
        Some(F::None) | None => FromNamespaces::None,
    };
    (from, namespaces.and_then(|n| n.selector.as_ref()).map(|s| selector!(s)))
}

/// A filter of a rule or of a backendRef. The content is absent where the object leaves it out, which its schema forbids.
#[derive(Clone, Debug)]
pub enum Filter<'a> {
    /// RequestHeaderModifier.
    RequestHeaders(Option<HeaderModifier<'a>>),
    /// ResponseHeaderModifier.
    ResponseHeaders(Option<HeaderModifier<'a>>),
    /// RequestRedirect.
    Redirect(Option<Redirect<'a>>),
    /// URLRewrite.
    Rewrite(Option<Rewrite<'a>>),
    /// Any other, by its name.
    Other(&'static str),
}

/// Changes to headers.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the fields of the Gateway API type of the same name")]
pub struct HeaderModifier<'a> {
    pub set: Vec<(&'a str, &'a str)>,
    pub add: Vec<(&'a str, &'a str)>,
    pub remove: &'a [String],
}

/// A redirect.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields of the Gateway API type of the same name")]
pub struct Redirect<'a> {
    pub scheme: Option<&'static str>,
    pub hostname: Option<&'a str>,
    pub port: Option<i32>,
    pub path: Option<Path<'a>>,
    pub status: i64,
}

/// A rewrite.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields of the Gateway API type of the same name")]
pub struct Rewrite<'a> {
    pub hostname: Option<&'a str>,
    pub path: Option<Path<'a>>,
}

/// How a path is replaced; the value is absent where the object leaves it out.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the values of the Gateway API field `type`")]
pub enum Path<'a> {
    ReplaceFullPath(Option<&'a str>),
    ReplacePrefixMatch(Option<&'a str>),
}

macro_rules! header_modifier {
    ($modifier:expr) => {
        $modifier.as_ref().map(|m| HeaderModifier {
            set: m.set.iter().flatten().map(|h| (&*h.name, &*h.value)).collect(),
            add: m.add.iter().flatten().map(|h| (&*h.name, &*h.value)).collect(),
            remove: m.remove.as_deref().unwrap_or_default(),
        })
    };
}

macro_rules! path {
    ($path:expr, $type:path) => {{
        use $type as T;
        $path.as_ref().map(|p| match p.r#type {
            T::ReplaceFullPath => Path::ReplaceFullPath(p.replace_full_path.as_deref()),
            T::ReplacePrefixMatch => Path::ReplacePrefixMatch(p.replace_prefix_match.as_deref()),
        })
    }};
}

macro_rules! http_filter_view {
    ($type:path, $filter:path, $scheme:path, $redirect_path:path, $rewrite_path:path) => {
        impl<'a> From<&'a $filter> for Filter<'a> {
            fn from(f: &'a $filter) -> Self {
                use $scheme as S;
                use $type as T;
                match f.r#type {
                    T::RequestHeaderModifier => Self::RequestHeaders(header_modifier!(f.request_header_modifier)),
                    T::ResponseHeaderModifier => Self::ResponseHeaders(header_modifier!(f.response_header_modifier)),
                    T::RequestRedirect => Self::Redirect(f.request_redirect.as_ref().map(|r| Redirect {
                        scheme: r.scheme.as_ref().map(|s| match s {
                            S::Http => "http",
                            S::Https => "https",
                        }),
                        hostname: r.hostname.as_deref(),
                        port: r.port,
                        path: path!(r.path, $redirect_path),
                        status: r.status_code.unwrap_or(302),
                    })),
                    T::UrlRewrite => Self::Rewrite(
                        f.url_rewrite
                            .as_ref()
                            .map(|r| Rewrite { hostname: r.hostname.as_deref(), path: path!(r.path, $rewrite_path) }),
                    ),
                    T::RequestMirror => Self::Other("RequestMirror"),
                    T::Cors => Self::Other("CORS"),
                    T::ExternalAuth => Self::Other("ExternalAuth"),
                    T::ExtensionRef => Self::Other("ExtensionRef"),
                    T::Unknown => Self::Other("of an unknown type"),
                }
            }
        }
    };
}

http_filter_view!(
    http_route::HttpRouteRulesFiltersType,
    http_route::HttpRouteRulesFilters,
    http_route::HttpRouteRulesFiltersRequestRedirectScheme,
    http_route::HttpRouteRulesFiltersRequestRedirectPathType,
    http_route::HttpRouteRulesFiltersUrlRewritePathType
);
http_filter_view!(
    http_route::HttpRouteRulesBackendRefsFiltersType,
    http_route::HttpRouteRulesBackendRefsFilters,
    http_route::HttpRouteRulesBackendRefsFiltersRequestRedirectScheme,
    http_route::HttpRouteRulesBackendRefsFiltersRequestRedirectPathType,
    http_route::HttpRouteRulesBackendRefsFiltersUrlRewritePathType
);

macro_rules! grpc_filter_view {
    ($type:path, $filter:path) => {
        impl<'a> From<&'a $filter> for Filter<'a> {
            fn from(f: &'a $filter) -> Self {
                use $type as T;
                match f.r#type {
                    T::RequestHeaderModifier => Self::RequestHeaders(header_modifier!(f.request_header_modifier)),
                    T::ResponseHeaderModifier => Self::ResponseHeaders(header_modifier!(f.response_header_modifier)),
                    T::RequestMirror => Self::Other("RequestMirror"),
                    T::ExtensionRef => Self::Other("ExtensionRef"),
                    T::Unknown => Self::Other("of an unknown type"),
                }
            }
        }
    };
}

grpc_filter_view!(grpc_route::GrpcRouteRulesFiltersType, grpc_route::GrpcRouteRulesFilters);
grpc_filter_view!(grpc_route::GrpcRouteRulesBackendRefsFiltersType, grpc_route::GrpcRouteRulesBackendRefsFilters);
