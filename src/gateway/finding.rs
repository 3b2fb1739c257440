//! Everything we can say about an object: the catalogue of codes, each with its severity, what it puts on a status, and what to do
//! about it. A code is stable: scripts and dashboards name it.

use std::fmt;

use serde::Serialize;

use super::condition::ConditionStatus::{False, True, Unknown};
use super::condition::Verdict;
use super::id::ObjectRef;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Severity {
    /// Something asked for is not served.
    Error,
    /// Served, but not wholly as asked for, or likely not as meant; or it cannot be told.
    Warning,
    /// Worth knowing.
    Info,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        })
    }
}

/// Which part of an object's status a finding belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The whole object; for a route, every parent.
    Object,
    /// The parentRef of this index.
    Parent(usize),
    /// The listener of this index.
    Listener(usize),
}

/// One diagnosed fact about one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What it is.
    pub code: Code,
    /// How much it matters.
    pub severity: Severity,
    /// The object it is about.
    pub object: ObjectRef,
    /// Where in the object, such as `spec.rules[0].filters[1]`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
    /// What is the matter.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub remedy: &'static str,
    /// Index of the rule, when it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
    /// Which part of the status it belongs to.
    #[serde(skip)]
    pub scope: Scope,
}

impl Finding {
    pub(super) fn new(code: Code, object: &ObjectRef, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code,
            severity: code.severity(),
            object: object.clone(),
            field: field.into(),
            message: limited(message.into(), MOST_MESSAGE),
            remedy: code.remedy(),
            rule: None,
            scope: Scope::Object,
        }
    }

    pub(super) const fn rule(mut self, index: usize) -> Self {
        self.rule = Some(index);
        self
    }

    pub(super) const fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }
}

/// Most bytes of a finding's message: what an object says is shown, however long it is, but not all of it.
const MOST_MESSAGE: usize = 1024;

/// A text of at most so many bytes; one that is cut says so.
pub(super) fn limited(mut text: String, most: usize) -> String {
    const CUT: &str = " ...";
    if text.len() > most {
        let cut = (0..=most - CUT.len()).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(cut);
        text.push_str(CUT);
    }
    text
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: ", self.severity, self.object)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "{} ({})", self.message, self.code)
    }
}

const fn verdict(r#type: &'static str, status: super::condition::ConditionStatus, reason: &'static str) -> Verdict {
    Verdict { r#type, status, reason }
}

const fn accepted(reason: &'static str) -> Verdict {
    verdict("Accepted", False, reason)
}

const fn unresolved(reason: &'static str) -> Verdict {
    verdict("ResolvedRefs", False, reason)
}

const fn partial() -> Verdict {
    verdict("PartiallyInvalid", True, "UnsupportedValue")
}

macro_rules! catalogue {
    ($($(#[$doc:meta])+ $code:ident: $severity:ident, [$($verdict:expr),*], $remedy:literal;)+) => {
        /// Everything we can say. The order is that of significance: the first code that sets a condition gives its reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub enum Code {
            $($(#[$doc])+ $code,)+
        }

        impl Code {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$code),+];

            /// The code's stable name.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$code => stringify!($code)),+ }
            }

            /// How much it matters.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$code => Severity::$severity),+ }
            }

            /// What it puts on a status; nothing for most of what is only worth knowing.
            pub const fn verdicts(self) -> &'static [Verdict] {
                match self { $(Self::$code => const { &[$($verdict),*] }),+ }
            }

            /// What to do about it.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$code => $remedy),+ }
            }
        }
    };
}

catalogue! {
    // GatewayClass
    /// The class's parametersRef leads to nothing usable.
    ClassParametersInvalid: Error, [accepted("InvalidParameters")],
        "create the GatewayClassConfig, or remove spec.parametersRef";
    /// A class of the direct mode, which this version does not serve.
    DirectModeUnsupported: Error, [accepted("Unsupported")],
        "use a GatewayClass with the controllerName cf.k8s.lex.la/tunnel-controller";
    /// The class's parametersRef cannot be followed, since no GatewayClassConfig was given.
    ClassParametersUnknown: Info, [], "include the GatewayClassConfig to have it checked";

    // Gateway
    /// No such GatewayClass.
    GatewayClassNotFound: Warning, [], "create the GatewayClass, or correct spec.gatewayClassName";
    /// No GatewayClass was given at all: the Gateway is taken for ours.
    GatewayClassUnknown: Info, [], "include the GatewayClass to have its controllerName checked";
    /// The class is ours but not accepted.
    GatewayClassNotAccepted: Error, [accepted("Pending")], "correct the GatewayClass first";
    /// The Gateway's parametersRef leads to nothing usable.
    GatewayParametersInvalid: Error, [accepted("InvalidParameters")],
        "name a GatewayConfig of the same namespace, or remove spec.infrastructure.parametersRef to use the shared plane";
    /// The Gateway's parametersRef cannot be followed, since no GatewayConfig was given.
    GatewayParametersUnknown: Info, [], "include the GatewayConfig to have it checked";
    /// Client certificates cannot be checked behind the Cloudflare edge.
    FrontendTlsUnsupported: Error, [accepted("Invalid")],
        "remove spec.tls.frontend and require client certificates at the Cloudflare edge";
    /// An address of a type that a tunnel does not have.
    AddressUnsupported: Error, [accepted("UnsupportedAddress")],
        "remove spec.addresses, or leave one entry of type Hostname without a value";
    /// A hostname that is not the tunnel's.
    AddressNotUsable: Warning, [verdict("Programmed", False, "AddressNotUsable")],
        "remove spec.addresses, or leave one entry of type Hostname without a value";
    /// No listener can be served.
    NoListenerValid: Error, [accepted("ListenersNotValid")], "correct the listeners; the status of each says what is wrong";
    /// Some listeners cannot be served.
    SomeListenersInvalid: Warning, [verdict("Accepted", True, "ListenersNotValid")],
        "correct the listeners; the status of each says what is wrong";
    /// Default Gateways (GEP-3793) are not implemented.
    DefaultGatewayUnsupported: Warning, [], "name the Gateway in spec.parentRefs of the routes";
    /// A client certificate towards backends has no use yet.
    ClientCertificateUnused: Warning, [], "wait for a version that enforces BackendTLSPolicy; no backend is dialed over TLS by this one";
    /// The plane keeps its last configuration, since something it depends on could not be read.
    PlaneHeld: Warning, [], "restore the access to the named kind; the plane follows by itself";

    // listener
    /// Two listeners of one object share a name.
    ListenerNameRepeated: Error, [accepted("UnsupportedValue")], "give every listener its own name";
    /// A protocol that cannot arrive over an HTTP tunnel.
    ListenerProtocolUnsupported: Error, [accepted("UnsupportedProtocol")],
        "use protocol HTTP or HTTPS; for others use Cloudflare Spectrum or another kind of load balancer";
    /// TLS that is not to end at the edge.
    ListenerTlsModeUnsupported: Error, [accepted("UnsupportedValue")], "use tls.mode Terminate: TLS ends at the Cloudflare edge";
    /// Filters of a listener are not implemented; without them the listener would be open.
    ListenerFiltersUnsupported: Error, [accepted("UnsupportedValue")], "remove the listener's filters";
    /// The hostname is not one.
    ListenerHostnameInvalid: Error, [accepted("UnsupportedValue")], "write a DNS name, or `*.` before one";
    /// The port is out of range.
    ListenerPortInvalid: Error, [accepted("UnsupportedValue")], "use a port from 1 to 65535";
    /// The namespace selector does not parse.
    ListenerSelectorInvalid: Error, [accepted("UnsupportedValue")],
        "use the operators In, NotIn, Exists and DoesNotExist, with values for the first two only";
    /// Another listener has the port for another protocol.
    ListenerProtocolConflict: Error,
        [
            accepted("ProtocolConflict"),
            verdict("Conflicted", True, "ProtocolConflict"),
            verdict("Programmed", False, "ProtocolConflict")
        ],
        "give the listener a port of its own";
    /// Another listener has the port and hostname.
    ListenerHostnameConflict: Error,
        [
            accepted("HostnameConflict"),
            verdict("Conflicted", True, "HostnameConflict"),
            verdict("Programmed", False, "HostnameConflict")
        ],
        "give the listener a hostname or a port of its own";
    /// allowedRoutes names kinds that the protocol does not carry.
    RouteKindsInvalid: Error, [unresolved("InvalidRouteKinds")], "allow HTTPRoute and GRPCRoute only";
    /// No ReferenceGrant lets the listener use a certificate of another namespace.
    CertificateNotPermitted: Error, [unresolved("RefNotPermitted"), verdict("Programmed", False, "Invalid")],
        "create a ReferenceGrant in the Secret's namespace, or use a Secret of the listener's own";
    /// The certificate is missing or is none.
    CertificateInvalid: Error, [unresolved("InvalidCertificateRef"), verdict("Programmed", False, "Invalid")],
        "name a Secret of type kubernetes.io/tls; over a tunnel it is only checked, clients see the edge's certificate";
    /// The certificate cannot be checked, since no Secret was given or ReferenceGrants could not be read.
    CertificateUnknown: Info, [], "include the Secret, and what grants its use, to have it checked";
    /// TLS options have no meaning where TLS ends at the edge.
    ListenerTlsOptionsIgnored: Info, [], "remove tls.options; TLS is set up for the zone, in the Cloudflare dashboard";
    /// Any namespace may claim any hostname on the listener.
    PermissiveHostname: Warning, [verdict("cf.k8s.lex.la/PermissiveHostname", True, "PermissiveHostname")],
        "pin the listener to a hostname, or allow routes of some namespaces only";

    // ListenerSet
    /// No such Gateway.
    ListenerSetParentNotFound: Warning, [], "create the Gateway, or correct spec.parentRef";
    /// The Gateway does not take ListenerSets of this namespace.
    ListenerSetNotAllowed: Error, [accepted("NotAllowed")],
        "set spec.allowedListeners.namespaces of the Gateway; the default allows none";
    /// The Gateway itself is refused.
    ListenerSetParentNotAccepted: Error, [accepted("ParentNotAccepted")], "correct the Gateway first";
    /// Whether the Gateway takes it depends on labels that are not known.
    ListenerSetNamespaceUnknown: Warning, [accepted("Pending")], "include the Namespace with its labels";

    // route: attachment
    /// The route names no parent.
    RouteWithoutParents: Warning, [], "name a Gateway in spec.parentRefs";
    /// No such Gateway or ListenerSet.
    ParentNotFound: Warning, [], "create the parent, or correct the parentRef";
    /// The parent is of a kind that no Gateway API ingress serves.
    ParentKindForeign: Info, [], "";
    /// The parent's class or parameters do not resolve.
    ParentPending: Error, [accepted("Pending")], "correct the parent first";
    /// The parent is refused as a whole.
    ParentNotAccepted: Error, [accepted("NoMatchingParent")], "correct the parent first";
    /// No listener has the parentRef's section name or port.
    NoMatchingParent: Error, [accepted("NoMatchingParent")], "correct sectionName or port of the parentRef";
    /// The listeners that the parentRef names are not accepted.
    ListenerNotAccepted: Error, [accepted("NoMatchingParent")], "correct the listener first";
    /// The listeners take no routes of this kind or namespace.
    NotAllowedByListeners: Error, [accepted("NotAllowedByListeners")],
        "change allowedRoutes of the listener, or the namespace of the route";
    /// Whether the listener takes the route depends on labels that are not known.
    RouteNamespaceUnknown: Warning, [accepted("Pending")], "include the Namespace with its labels";
    /// No hostname of the route is one of the listeners'.
    NoMatchingListenerHostname: Error, [accepted("NoMatchingListenerHostname")],
        "use a hostname that the listener covers, or none";
    /// A hostname of the route is not one.
    RouteHostnameInvalid: Error, [accepted("UnsupportedValue")], "write a DNS name, or `*.` before one";
    /// Pinned QUIC carries no trailers, and so no gRPC.
    GrpcNeedsHttp2: Error, [accepted("UnsupportedProtocol")], "set the tunnel protocol to auto or http2";
    /// Raw TLS, TCP and UDP cannot arrive over an HTTP tunnel.
    StreamRouteUnsupported: Error, [accepted("UnsupportedProtocol")],
        "use an HTTPRoute or GRPCRoute; for other traffic use Cloudflare Spectrum or another kind of load balancer";
    /// Every rule combines a redirect with a rewrite.
    EveryRuleIncompatible: Error, [accepted("IncompatibleFilters")], "keep either the redirect or the rewrite";
    /// No rule can be served as written.
    EveryRuleUnsupported: Error, [accepted("UnsupportedValue")], "correct the rules; each has its own finding";
    /// Another route of higher precedence claims the same match of the same hostname.
    RouteShadowed: Warning, [verdict("cf.k8s.lex.la/RouteShadowed", True, "RouteShadowed")],
        "remove one of the two matches, or make them differ";
    /// gRPC needs a switch of the Cloudflare zone that no API shows.
    GrpcEdgeProxyingRequired: Info, [], "turn on Network > gRPC for the zone in the Cloudflare dashboard";

    // route: rules
    /// A rule combines a redirect with a rewrite.
    FiltersIncompatible: Error, [partial()], "keep either the redirect or the rewrite";
    /// A filter of a rule that this version cannot apply.
    FilterUnsupported: Error, [partial()], "remove the filter; requests that the rule matches get 500 meanwhile";
    /// A filter of a backendRef that this version cannot apply.
    BackendFilterUnsupported: Error, [partial()], "remove the filter; the backend's share of requests gets 500 meanwhile";
    /// A filter with a value that cannot be used.
    FilterInvalid: Error, [partial()], "correct the filter; what it covers gets 500 meanwhile";
    /// An expression that does not compile.
    PatternInvalid: Error, [partial()], "correct the expression (RE2 syntax)";
    /// A match with a value that cannot be used.
    MatchInvalid: Error, [partial()], "correct the match";
    /// A timeout that is no duration.
    TimeoutInvalid: Warning, [partial()], "write a duration such as 10s, 1m30s or 500ms";
    /// Retries are not implemented yet.
    RetryUnsupported: Warning, [partial()], "remove the retry policy, or accept that the rule serves without it";
    /// Session persistence is not implemented yet.
    SessionPersistenceUnsupported: Warning, [partial()],
        "remove sessionPersistence, or accept that the rule serves without it";
    /// A header is matched twice; only the first counts.
    HeaderMatchRepeated: Info, [], "remove the second match of the header";
    /// A filter removes a header that a WebSocket handshake needs.
    HandshakeHeaderRemoved: Warning, [], "keep Connection, Upgrade and Sec-WebSocket-Accept on routes with WebSocket backends";
    /// A GRPCRoute without rules matches nothing; there is no default one.
    NoRules: Warning, [], "add a rule; one without matches takes every gRPC request";
    /// A rule leads nowhere.
    RuleWithoutBackends: Warning, [], "add a backendRef with a weight above zero, or a redirect";

    // route: backends
    /// No ReferenceGrant lets the route use a backend of another namespace.
    BackendNotPermitted: Error, [unresolved("RefNotPermitted")],
        "create a ReferenceGrant in the backend's namespace";
    /// A kind of backend that cannot be served.
    BackendKindUnsupported: Error, [unresolved("InvalidKind")], "use a Service";
    /// No such Service.
    BackendNotFound: Error, [unresolved("BackendNotFound")], "create the Service, or correct the backendRef";
    /// The Service has no such port.
    BackendPortNotFound: Error, [unresolved("BackendNotFound")], "use a port that the Service has";
    /// The backendRef has no usable port.
    BackendPortInvalid: Error, [unresolved("UnsupportedValue")], "set a port from 1 to 65535";
    /// The weight is out of range.
    BackendWeightInvalid: Error, [unresolved("UnsupportedValue")], "use a weight from 0 to 1000000";
    /// A BackendTLSPolicy covers the Service, and this version cannot enforce it.
    BackendTlsUnsupported: Error, [unresolved("InvalidBackendTLSPolicy")],
        "remove the BackendTLSPolicy if the Service also takes plain HTTP; the backend's share gets 500 meanwhile";
    /// The port asks for TLS and no policy says how to verify it.
    BackendProtocolUnsupported: Error, [unresolved("UnsupportedProtocol")],
        "use a port without TLS, or change its appProtocol";
    /// ExternalName Services lead anywhere their author likes.
    ExternalNameRefused: Error, [unresolved("UnsupportedValue")], "use a Service with endpoints";
    /// An appProtocol that we do not know; HTTP/1.1 is used.
    BackendProtocolUnknown: Warning, [unresolved("UnsupportedProtocol")],
        "use kubernetes.io/h2c, kubernetes.io/ws, http or grpc, or remove appProtocol";
    /// Whether the Service exists, or may be used, cannot be told, since no Service was given or a kind could not be read.
    BackendUnknown: Warning, [verdict("ResolvedRefs", Unknown, "Pending")],
        "include the Service and what grants its use, or give the backend by hand";
    /// The Service has no endpoint to send to.
    BackendWithoutEndpoints: Warning, [], "start a Pod that becomes ready; requests get 503 meanwhile";
    /// Whether the Service has endpoints cannot be told, since no EndpointSlice was given or none could be read.
    EndpointsUnknown: Info, [], "include the EndpointSlices, or give the backend by hand; requests get 503 meanwhile";
    /// An endpoint address that no Pod can have.
    EndpointAddressRefused: Warning, [], "use addresses of Pods";
    /// A BackendTLSPolicy that this version does not enforce.
    PolicyNotEnforced: Warning, [], "expect 500 for the backends it covers until a version enforces it";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
