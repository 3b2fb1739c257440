//! One request and its response, phase by phase: admit, route, filter, forward, filter the response. Each phase's rules are in
//! its own file; here is their order.

use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;

use super::h1::Upload;
use super::host::{self, Host};
use super::lease::{Incoming, Lease};
use super::plane::{InFlight, Options, Serving};
use super::request_body::RequestBody;
use super::upgrade::{self, Handshake};
use super::{Body, Inbound, ResponseBody, Via, filter, forwarded, framing, grpc};
use crate::gateway::ir::BackendProtocol;
use crate::proxy::error::{Error, Kind};
use crate::proxy::table::{Action, Backend, BackendEntry, Backends, Hit, RequestKey, Rule, Target};

const X_ORIGINAL_HOST: HeaderName = HeaderName::from_static("x-original-host");

/// Answers one request. `in_flight` is taken by what outlives the head of the response.
///
/// # Errors
/// Whatever keeps the request from a backend's response; its kind decides the status.
pub(super) async fn answer(
    serving: &Serving,
    options: &Options,
    mut inbound: Inbound,
    request: Request<Body>,
    in_flight: &mut Option<InFlight>,
) -> Result<Response<Body>, Error> {
    let (mut head, body) = request.into_parts();
    let authority = admit_authority(&mut inbound, &mut head.headers, serving.table.options().allow_x_original_host)?;
    let host = parse_host(&authority)?;
    let body = admit(&mut head, &inbound, body)?;
    if let Via::Direct { peer, tls } = inbound.via {
        forwarded::set_client(&mut head.headers, peer, tls, &authority);
    }
    head.headers.insert(HOST, authority.clone());
    let key = RequestKey {
        host: &host,
        path: head.uri.path(),
        query: head.uri.query(),
        method: &head.method,
        headers: &head.headers,
        grpc: grpc::is_grpc(&head.headers),
    };
    let hit = serving.table.find(&key).ok_or(Kind::NoRule)?;
    let Hit { rule, .. } = hit;
    let exchange = Exchange { serving, options, hit, via: inbound.via, websocket: inbound.websocket };
    let outcome = exchange.run(head, body, host, in_flight).await;
    outcome.inspect_err(|error| {
        let (reason, error) = (error.kind().label(), error.causes());
        tracing::debug!(route = %rule.route, rule = rule.index, reason, error, "Request failed");
    })
}

/// The authority to route by. `Host` beside `:authority` must say the same (RFC 9113 §8.3.1).
fn admit_authority(inbound: &mut Inbound, headers: &mut HeaderMap, original: bool) -> Result<HeaderValue, Error> {
    let authority = std::mem::take(&mut inbound.authority);
    if headers.get_all(HOST).iter().any(|host| !host.as_bytes().eq_ignore_ascii_case(authority.as_bytes())) {
        return Err(Kind::BadHost.into());
    }
    if original && let Some(original) = headers.remove(X_ORIGINAL_HOST) {
        return Ok(original);
    }
    HeaderValue::try_from(authority).map_err(|e| Error::new(Kind::BadHost, e))
}

fn parse_host(authority: &HeaderValue) -> Result<Host<'_>, Error> {
    let text = authority.to_str().map_err(|e| Error::new(Kind::BadHost, e))?;
    host::parse(text).ok_or_else(|| Kind::BadHost.into())
}

/// Checks a head and clears it of what belongs to the hop that it came over.
fn admit(head: &mut Parts, inbound: &Inbound, body: Body) -> Result<RequestBody, Error> {
    framing::check_size(&head.uri, &head.headers)?;
    framing::check_target(&head.method, &head.uri)?;
    if inbound.websocket && head.method != Method::GET {
        return Err(Kind::BadTarget.into());
    }
    if let (Some(_), Some(target)) = (head.uri.authority(), head.uri.path_and_query()) {
        // Absolute form: the authority that counts is the one that the transport named.
        head.uri = Uri::from(target.clone());
    }
    let declared = framing::request_length(&mut head.headers)?;
    let known = body.size_hint().exact();
    if let (Some(declared), Some(known), false) = (declared, known, inbound.websocket)
        && declared != known
    {
        return Err(Kind::BadLength.into());
    }
    forwarded::strip_request(&mut head.headers);
    if inbound.websocket {
        // Bytes that are never sent must not be announced either: a backend that does not get the upgrade would take them
        // from the next request on its connection.
        head.headers.remove(CONTENT_LENGTH);
    }
    head.extensions.clear();
    // What follows the head of an upgrade is not a body but the session, which the transport carries.
    Ok(if inbound.websocket { RequestBody::empty() } else { RequestBody::new(body, declared) })
}

/// A request that has found its rule.
struct Exchange<'s> {
    serving: &'s Serving,
    options: &'s Options,
    hit: Hit<'s>,
    via: Via,
    websocket: bool,
}

impl Exchange<'_> {
    async fn run(
        &self,
        head: Parts,
        body: RequestBody,
        host: Host<'_>,
        in_flight: &mut Option<InFlight>,
    ) -> Result<Response<Body>, Error> {
        let origin = || filter::Origin {
            scheme: forwarded::scheme(&head.headers, self.via),
            host: &host,
            uri: &head.uri,
            prefix: self.hit.prefix,
        };
        let backends = match &self.hit.rule.action {
            Action::Forward(backends) => backends,
            Action::Redirect(redirect) => return Ok(filter::redirect(redirect, origin())),
            Action::Refuse(reason) => return Err(Error::new(Kind::Refused, &**reason)),
        };
        let entry = choose(backends)?;
        match &entry.target {
            Target::Backend(backend) => self.forward(head, body, entry, backend, in_flight).await,
            Target::Redirect(redirect) => Ok(filter::redirect(redirect, origin())),
            Target::Refuse(reason) => Err(Error::new(Kind::Refused, &**reason)),
        }
    }

    async fn forward(
        &self,
        mut head: Parts,
        body: RequestBody,
        entry: &BackendEntry,
        backend: &Backend,
        in_flight: &mut Option<InFlight>,
    ) -> Result<Response<Body>, Error> {
        let rule = self.hit.rule;
        let upstream = self.serving.upstreams.get(&backend.key).ok_or(Kind::NoEndpoints)?;
        let authority = head.headers.get(HOST).cloned();
        filter::request(rule.filters.iter().chain(&entry.filters), &mut head.headers, &mut head.uri, self.hit.prefix)?;
        if let (Some(authority), false) = (authority, head.headers.contains_key(HOST)) {
            head.headers.insert(HOST, authority);
        }
        let method = head.method.clone();
        let metrics = &self.options.metrics;
        let limit = rule.response_timeout;
        let (response, lease) = if self.websocket && self.upgrades(backend) {
            upgrade::set_handshake(&mut head.headers);
            let request = Request::from_parts(head, RequestBody::empty());
            let idle = self.options.websocket_idle_timeout;
            match Box::pin(upgrade::handshake(upstream, request, limit, idle, in_flight, metrics)).await? {
                Handshake::Declined(response, lease) => (response, lease),
                Handshake::Switched(mut response) => {
                    filter::response(rule.filters.iter().chain(&entry.filters), response.headers_mut());
                    return Ok(response);
                }
            }
        } else {
            let mut body = body;
            if backend.protocol == BackendProtocol::Http1 && body.is_open() && is_usually_empty(&head.method) {
                Box::pin(body.probe()).await;
            }
            match backend.protocol {
                BackendProtocol::Http1 => upstream.send_h1(frame_h1(head, body), limit, metrics).await?,
                BackendProtocol::H2c => Box::pin(upstream.send_h2(frame_h2(head, body)?, limit, metrics)).await?,
            }
        };
        finish(response, lease, &method, rule, entry, in_flight)
    }

    /// X12: every HTTP/1.1 backend takes an upgrade, unless the plane asks for an `appProtocol` that says so.
    fn upgrades(&self, backend: &Backend) -> bool {
        let required = self.serving.table.options().websocket_require_app_protocol;
        backend.protocol == BackendProtocol::Http1 && (backend.websocket || !required)
    }
}

/// One of the backends, by weight.
fn choose(backends: &Backends) -> Result<&BackendEntry, Error> {
    let draw = if backends.entries.len() > 1 { rand::random() } else { 0 };
    backends.pick(draw).ok_or_else(|| Kind::Refused.into())
}

/// Methods that usually have no body: a request gets a moment to show that it has none, because many servers take a chunked GET
/// badly (S3 "Retries").
fn is_usually_empty(method: &Method) -> bool {
    ["GET", "HEAD", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "SEARCH"].contains(&method.as_str())
}

/// A request of a method that usually has a body says that it has none (RFC 9110 §8.6).
fn frame_h1(mut head: Parts, body: RequestBody) -> Upload {
    if body.is_end_stream() && [Method::POST, Method::PUT, Method::PATCH].contains(&head.method) {
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    Upload::new(&head, body)
}

/// The host goes into `:authority`.
fn frame_h2(mut head: Parts, body: RequestBody) -> Result<Request<RequestBody>, Error> {
    head.version = Version::HTTP_2;
    let host = head.headers.remove(HOST).ok_or(Kind::BadHost)?;
    let authority = Authority::try_from(host.as_bytes()).map_err(|e| Error::new(Kind::BadHost, e))?;
    let mut uri = head.uri.into_parts();
    uri.scheme = Some(Scheme::HTTP);
    uri.authority = Some(authority);
    head.uri = Uri::from_parts(uri).map_err(|e| Error::new(Kind::BadTarget, e))?;
    Ok(Request::from_parts(head, body))
}

/// Makes a backend's response fit for the next hop: one length, no hop-by-hop fields, filters applied.
fn finish(
    response: Response<Incoming>,
    lease: Lease,
    method: &Method,
    rule: &Rule,
    entry: &BackendEntry,
    in_flight: &mut Option<InFlight>,
) -> Result<Response<Body>, Error> {
    let (mut head, incoming) = response.into_parts();
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Kind::Switched.into());
    }
    framing::response_length(&mut head.headers)?;
    if head.status == StatusCode::NO_CONTENT {
        head.headers.remove(CONTENT_LENGTH);
    }
    forwarded::strip_response(&mut head.headers);
    filter::response(rule.filters.iter().chain(&entry.filters), &mut head.headers);
    head.extensions.clear();
    head.version = Version::HTTP_11;
    let bodiless = *method == Method::HEAD || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let body = match in_flight.take() {
        Some(in_flight) if !bodiless => ResponseBody::wrap(incoming, lease, in_flight),
        _ => {
            lease.give_back(incoming);
            Body::Empty
        }
    };
    Ok(Response::from_parts(head, body))
}
