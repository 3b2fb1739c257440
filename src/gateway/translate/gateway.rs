//! Which Gateways are ours, which are refused as a whole, and which plane serves each. Listeners are judged in the next pass.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;

use super::PlaneId;
use super::class::Class;
use super::ctx::Ctx;
use crate::gateway::finding::Code;
use crate::gateway::id::{Kind, ObjectRef};
use crate::gateway::resource::gateway_api::gateway::{Gateway, GatewayDefaultScope};
use crate::gateway::resource::{ListenMode, Planes};
use crate::gateway::snapshot::Coverage;
use crate::gateway::token::TunnelToken;

/// A Gateway of ours.
pub(super) struct Gw<'s> {
    pub(super) object: &'s Gateway,
    pub(super) id: ObjectRef,
    pub(super) plane: PlaneId,
    /// Set when it is refused as a whole: no route attaches to it, no ListenerSet joins it, and it has no plane of its own.
    pub(super) refused: Option<Refusal>,
}

/// How a refused Gateway looks to its routes (S3 "Unsupported config is surfaced on resource status").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Refusal {
    /// Bound, but the parent cannot be programmed: its class or its parameters do not resolve.
    Pending,
    /// The Gateway asks for what a tunnel cannot do, and is no parent at all.
    Unserved,
}

/// The Gateways of a snapshot, told apart.
pub(super) struct Gateways<'s> {
    /// Ours, by namespace and name.
    pub(super) ours: Vec<Gw<'s>>,
    /// Those that are there but not ours: routes to them are none of our business.
    pub(super) foreign: Vec<(&'s str, &'s str)>,
}

/// Judges every Gateway.
pub(super) fn gateways<'s>(ctx: &mut Ctx<'s>, classes: &BTreeMap<&'s str, Class<'s>>) -> Gateways<'s> {
    let mut all = Gateways { ours: Vec::new(), foreign: Vec::new() };
    let snapshot = ctx.snapshot;
    for (id, gateway) in snapshot.gateways.iter() {
        let (key, id) = (id.key(), id.clone());
        match class_of(ctx, classes, gateway, &id) {
            Class::Foreign => all.foreign.push(key),
            Class::Refused => {
                let message = format!("gatewayclass {} is not accepted", gateway.spec.gateway_class_name);
                ctx.report(Code::GatewayClassNotAccepted, &id, "spec.gatewayClassName", message);
                let plane = plane_of(ctx, gateway, &id, Planes::Shared);
                all.ours.push(Gw { object: gateway, plane, id, refused: Some(Refusal::Pending) });
            }
            Class::Accepted { planes, tunnel_id } => {
                let plane = plane_of(ctx, gateway, &id, planes);
                let tunnel_id = if planes == Planes::PerGateway { None } else { tunnel_id };
                let refused = refused(ctx, gateway, &id, &plane, tunnel_id);
                all.ours.push(Gw { object: gateway, id, plane, refused });
            }
        }
    }
    all
}

/// The class of a Gateway. One that is missing is not foreign when it is the class that we are told is ours, or when no class
/// was given at all.
fn class_of<'s>(ctx: &mut Ctx<'s>, classes: &BTreeMap<&'s str, Class<'s>>, gateway: &Gateway, id: &ObjectRef) -> Class<'s> {
    let class = gateway.spec.gateway_class_name.as_str();
    if let Some(class) = classes.get(class) {
        return class.clone();
    }
    let field = "spec.gatewayClassName";
    if class == ctx.snapshot.options.gateway_class || !ctx.snapshot.is_complete(Kind::GatewayClass) {
        ctx.report(Code::GatewayClassUnknown, id, field, format!("cannot see gatewayclass {class}; taken for ours"));
        return Class::Accepted { planes: Planes::Shared, tunnel_id: None };
    }
    ctx.report(Code::GatewayClassNotFound, id, field, format!("there is no gatewayclass {class}; nothing serves this Gateway"));
    Class::Foreign
}

fn plane_of(ctx: &Ctx<'_>, gateway: &Gateway, id: &ObjectRef, planes: Planes) -> PlaneId {
    let dedicated =
        planes == Planes::PerGateway || gateway.spec.infrastructure.as_ref().is_some_and(|i| i.parameters_ref.is_some());
    if ctx.snapshot.options.single_plane {
        PlaneId::Local
    } else if dedicated {
        PlaneId::Gateway { namespace: id.namespace().to_owned(), name: id.name().to_owned() }
    } else {
        PlaneId::Class(gateway.spec.gateway_class_name.clone())
    }
}

/// Reports what is wrong with a Gateway as a whole, and says whether and how that refuses it.
fn refused(ctx: &mut Ctx<'_>, gateway: &Gateway, id: &ObjectRef, plane: &PlaneId, tunnel_id: Option<&str>) -> Option<Refusal> {
    let parameters = parameters(ctx, gateway, id, plane);
    let own = parameters.map(|own| own.unwrap_or_else(|| tunnel_id.map(str::to_owned)));
    let pending = own.is_err();
    let mut unserved = addresses_refused(ctx, gateway, id, own.ok().flatten().as_deref());
    if let Some(tls) = &gateway.spec.tls {
        if tls.frontend.is_some() {
            let message = "clients complete TLS with the Cloudflare edge, and the tunnel does not carry their certificate";
            ctx.report(Code::FrontendTlsUnsupported, id, "spec.tls.frontend", message);
            unserved = true;
        }
        if tls.backend.as_ref().is_some_and(|b| b.client_certificate_ref.is_some()) {
            let message = "this version dials no backend over TLS, so the client certificate is never presented";
            ctx.report(Code::ClientCertificateUnused, id, "spec.tls.backend.clientCertificateRef", message);
        }
    }
    if gateway.spec.default_scope.as_ref().is_some_and(|s| *s != GatewayDefaultScope::None) {
        let message = "routes attach by their parentRefs only; this Gateway is no default for others";
        ctx.report(Code::DefaultGatewayUnsupported, id, "spec.defaultScope", message);
    }
    unserved.then_some(Refusal::Unserved).or_else(|| pending.then_some(Refusal::Pending))
}

/// Whose tunnel serves a Gateway: the class's, or its own, whose id may not be known.
type Tunnel = Option<Option<String>>;

/// Follows `infrastructure.parametersRef`; an error when it leads to nothing usable, which is reported.
fn parameters(ctx: &mut Ctx<'_>, gateway: &Gateway, id: &ObjectRef, plane: &PlaneId) -> Result<Tunnel, Unusable> {
    let Some(reference) = gateway.spec.infrastructure.as_ref().and_then(|i| i.parameters_ref.as_ref()) else {
        return Ok(None);
    };
    let field = "spec.infrastructure.parametersRef";
    let name = &reference.name;
    if (reference.group.as_str(), reference.kind.as_str()) != ("cf.k8s.lex.la", "GatewayConfig") {
        return unusable(ctx, id, field, format!("{} is no GatewayConfig of cf.k8s.lex.la", reference.kind));
    }
    let snapshot = ctx.snapshot;
    let Some(config) = snapshot.gateway_configs.get(id.namespace(), name) else {
        if *snapshot.coverage(Kind::GatewayConfig) == Coverage::Complete {
            return unusable(ctx, id, field, format!("there is no gatewayconfig {}/{name}", id.namespace()));
        }
        ctx.depends(plane, Kind::GatewayConfig);
        let message = format!("cannot tell whether gatewayconfig {}/{name} exists", id.namespace());
        ctx.report(Code::GatewayParametersUnknown, id, field, message);
        return Ok(Some(None));
    };
    if config.spec.listen_mode == ListenMode::Direct {
        let message = format!("gatewayconfig {name} has listenMode Direct, and the class is of the tunnel mode");
        return unusable(ctx, id, field, message);
    }
    let Some(token) = &config.spec.tunnel_token_secret_ref else {
        return unusable(ctx, id, field, format!("gatewayconfig {name} has no tunnelTokenSecretRef"));
    };
    let key = token.key.as_deref().unwrap_or("tunnel-token");
    let Some(secret) = snapshot.secrets.get(id.namespace(), &token.name) else {
        if snapshot.is_complete(Kind::Secret) {
            return unusable(ctx, id, field, format!("there is no secret {}/{}", id.namespace(), token.name));
        }
        ctx.depends(plane, Kind::Secret);
        return Ok(Some(None));
    };
    match tunnel_of(secret, key) {
        Ok(tunnel) => Ok(Some(Some(tunnel))),
        // The reason names fields of a token, never its content.
        Err(reason) => unusable(ctx, id, field, format!("key {key} of secret {}/{}: {reason}", id.namespace(), token.name)),
    }
}

/// A parametersRef that leads to nothing usable; already reported.
struct Unusable;

fn unusable(ctx: &mut Ctx<'_>, id: &ObjectRef, field: &str, message: String) -> Result<Tunnel, Unusable> {
    ctx.report(Code::GatewayParametersInvalid, id, field, message);
    Err(Unusable)
}

/// The tunnel that a token names.
fn tunnel_of(secret: &Secret, key: &str) -> Result<String, String> {
    let text = secret.string_data.as_ref().and_then(|d| d.get(key)).map(String::as_str);
    let bytes = || secret.data.as_ref().and_then(|d| d.get(key)).and_then(|b| std::str::from_utf8(&b.0).ok());
    let text = text.or_else(bytes).ok_or_else(|| "there is no text under it".to_owned())?;
    let token = TunnelToken::from_any(text).map_err(|error| error.to_string())?;
    Ok(token.tunnel_id.to_string())
}

/// A tunnel has one address, its own hostname (S3 "spec.addresses accepts only the tunnel hostname").
fn addresses_refused(ctx: &mut Ctx<'_>, gateway: &Gateway, id: &ObjectRef, tunnel_id: Option<&str>) -> bool {
    let mut refused = false;
    for (index, address) in gateway.spec.addresses.iter().flatten().enumerate() {
        let field = format!("spec.addresses[{index}]");
        let r#type = address.r#type.as_deref().unwrap_or("IPAddress");
        let value = address.value.as_deref().unwrap_or_default();
        if r#type != "Hostname" {
            let message = format!("an address of type {type} is asked for; a tunnel has only its own hostname");
            ctx.report(Code::AddressUnsupported, id, field, message);
            refused = true;
        } else if let Some(routability) = address.routability.as_deref().filter(|r| !r.is_empty()) {
            let message = format!("an address of routability {routability} is asked for; a tunnel is reached from everywhere");
            ctx.report(Code::AddressUnsupported, id, field, message);
            refused = true;
        } else if !value.is_empty() && !may_be_the_tunnel(value, tunnel_id) {
            let own = tunnel_id.map_or_else(|| "<tunnel-id>.cfargotunnel.com".to_owned(), hostname_of);
            let message = format!("hostname {value} is asked for; the tunnel's is {own}, and that is where it serves");
            ctx.report(Code::AddressNotUsable, id, field, message);
        }
    }
    refused
}

/// Whether a hostname is the tunnel's, or may be when the tunnel is not known.
fn may_be_the_tunnel(value: &str, tunnel_id: Option<&str>) -> bool {
    match tunnel_id {
        Some(tunnel) => value.eq_ignore_ascii_case(&hostname_of(tunnel)),
        None => {
            let lower = value.to_ascii_lowercase();
            lower.strip_suffix(".cfargotunnel.com").is_some_and(|id| uuid::Uuid::try_parse(id).is_ok())
        }
    }
}

fn hostname_of(tunnel_id: &str) -> String {
    format!("{tunnel_id}.cfargotunnel.com")
}
