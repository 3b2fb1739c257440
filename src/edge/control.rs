//! What the edge does on a connection besides requests, on either transport: the control stream, configuration pushes, and the
//! end of the connection.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::Shared;
use super::link::{Channel, Command, Link, LinkError, Upload};
use super::session::{ConfigAck, EventKind, Origin, SessionKey};
use crate::proxy::connector::wire::headers;
use crate::proxy::connector::wire::registration::{ConnectionResponse, Registration};
use crate::proxy::connector::wire::rpc::{
    CallId, ConfigurationClient, ConfigurationClientEvent, RegistrationEvent, RegistrationServer,
};
use crate::proxy::connector::wire::stream::RPC_SIGNATURE;
use crate::proxy::http::Body;

/// How long a connector has from its connection to its registration.
const REGISTRATION_DEADLINE: Duration = Duration::from_secs(30);
/// How long a connector has to answer a configuration.
const CONFIG_DEADLINE: Duration = Duration::from_secs(10);
/// What a drained connection gets, for the last bytes to get out.
const LINGER: Duration = Duration::from_millis(100);
/// Most bytes of an answer to a configuration over HTTP/2.
const MAX_ANSWER: usize = 64 * 1024;
/// Where this edge says it is.
const LOCATION: &str = "local";

/// Obeys commands until the connection is to end; returns why. `end` resolves when it ends by itself.
pub(super) async fn supervise(
    shared: &Shared,
    mut commands: mpsc::UnboundedReceiver<Command>,
    end: impl Future<Output = String>,
    mut inject: impl FnMut(Bytes),
    mut go_away: impl FnMut(),
) -> String {
    let mut end = std::pin::pin!(end);
    let linger = tokio::time::sleep(Duration::from_secs(u32::MAX.into()));
    let mut linger = std::pin::pin!(linger);
    loop {
        tokio::select! {
            reason = &mut end => return reason,
            () = shared.stop.cancelled() => return "the edge stops".into(),
            () = &mut linger => return "drained".into(),
            command = commands.recv() => match command {
                Some(Command::Close(reason)) => return reason,
                Some(Command::CloseSoon) => linger.as_mut().reset(tokio::time::Instant::now() + LINGER),
                Some(Command::GoAway) => go_away(),
                Some(Command::Inject(bytes)) => inject(bytes),
                None => return "forgotten".into(),
            },
        }
    }
}

/// The edge's end of a control stream, from the first byte to the last.
pub(super) struct ControlStream {
    pub(super) shared: Arc<Shared>,
    pub(super) origin: Origin,
    pub(super) link: Link,
    pub(super) out: Upload,
    pub(super) body: Body,
    pub(super) server: RegistrationServer,
    /// Set while registered.
    pub(super) session: SessionSlot,
}

/// The session of a connection, which ends with whoever owns the connection.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionSlot(Arc<std::sync::OnceLock<SessionKey>>);

impl SessionSlot {
    fn get(&self) -> Option<SessionKey> {
        self.0.get().copied()
    }

    /// Ends the session, if there is one.
    pub(super) fn close(&self, shared: &Shared, origin: &Origin, reason: String) {
        match self.get() {
            Some(key) => shared.sessions.remove(key, reason),
            None => {
                let (transport, remote) = (origin.transport, origin.remote);
                shared.sessions.record(EventKind::HandshakeFailed { transport, remote, reason });
            }
        }
    }
}

impl ControlStream {
    /// Serves the stream until it ends; then the connection ends too, unless it is being drained.
    pub(super) async fn serve(mut self) {
        let reason = match self.run().await {
            Ok(()) => "the control stream ended".to_owned(),
            Err(error) => format!("control stream: {error}"),
        };
        let Self { shared, link, session, out, .. } = self;
        out.finish();
        if !session.get().is_some_and(|key| shared.sessions.is_draining(key)) {
            link.command(Command::Close(reason));
        }
    }

    async fn run(&mut self) -> Result<(), LinkError> {
        let deadline = tokio::time::Instant::now() + REGISTRATION_DEADLINE;
        loop {
            let frame = self.body.frame();
            let frame = if self.session.get().is_some() {
                frame.await
            } else {
                match tokio::time::timeout_at(deadline, frame).await {
                    Ok(frame) => frame,
                    Err(_) => return Err(LinkError::Connector("nothing: it did not register in time".into())),
                }
            };
            let bytes = match frame {
                None => return Ok(()),
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Err(LinkError::Connector(error.to_string())),
            };
            let events = self.server.receive(&bytes);
            let output = self.server.take_output();
            self.send(output).await?;
            for event in events? {
                self.take(event).await?;
            }
        }
    }

    async fn take(&mut self, event: RegistrationEvent) -> Result<(), LinkError> {
        match event {
            RegistrationEvent::Register { call, registration } => self.register(call, *registration).await,
            RegistrationEvent::Unregister { call } => {
                if let Some(key) = self.session.get() {
                    self.shared.sessions.unregister(key);
                }
                let output = self.server.acknowledge(call)?;
                self.send(output).await
            }
            RegistrationEvent::UpdateLocalConfiguration { call, config } => {
                if let Some(key) = self.session.get() {
                    self.shared.sessions.set_local_config(key, config);
                }
                let output = self.server.acknowledge(call)?;
                self.send(output).await
            }
            // Its way of saying that it is done; the stream ends next.
            RegistrationEvent::Aborted(_) => Ok(()),
        }
    }

    async fn register(&mut self, call: CallId, registration: Registration) -> Result<(), LinkError> {
        tokio::time::sleep(self.shared.faults.registration_delay()).await;
        if self.session.get().is_some() {
            let output = self.server.fail(call, "this connection is registered")?;
            return self.send(output).await;
        }
        if let Some(refusal) = self.refusal(&registration) {
            if let ConnectionResponse::Error { cause, .. } = &refusal {
                self.shared.sessions.record(EventKind::Refused {
                    transport: self.origin.transport,
                    index: registration.conn_index,
                    cause: cause.clone(),
                    previous_attempts: registration.options.num_previous_attempts,
                });
            }
            let output = self.server.answer_registration(call, &refusal)?;
            return self.send(output).await;
        }
        let id = Uuid::new_v4();
        let details = ConnectionResponse::Details {
            uuid: id,
            location: LOCATION.into(),
            remotely_managed: !self.shared.faults.is_locally_managed(),
        };
        let output = self.server.answer_registration(call, &details)?;
        self.send(output).await?;
        let (origin, link) = (self.origin.clone(), self.link.clone());
        let key = self.shared.sessions.add(origin, link, registration.conn_index, id, registration.options);
        // Set once: it was not when this function began, and nobody else sets it.
        let _ = self.session.0.set(key);
        if let Some((version, json)) = self.shared.sessions.config() {
            self.shared.tasks.spawn(push_config(Arc::clone(&self.shared), key, self.link.clone(), version, json));
        }
        Ok(())
    }

    /// Why this registration is not taken, if it is not.
    fn refusal(&self, registration: &Registration) -> Option<ConnectionResponse> {
        if let Some(refusal) = self.shared.faults.take_refusal() {
            let super::Refusal { cause, should_retry, retry_after, .. } = refusal;
            return Some(ConnectionResponse::Error { cause, should_retry, retry_after });
        }
        let token = &self.shared.token;
        let right = registration.account_tag == token.account_tag
            && registration.tunnel_id == token.tunnel_id
            && registration.tunnel_secret == token.secret;
        let cause = "Unauthorized: Invalid tunnel secret".to_owned();
        (!right).then_some(ConnectionResponse::Error { cause, should_retry: false, retry_after: None })
    }

    async fn send(&mut self, bytes: Vec<u8>) -> Result<(), LinkError> {
        if bytes.is_empty() { Ok(()) } else { self.out.send(bytes.into()).await }
    }
}

/// Pushes the configuration to every connection, each by itself.
pub(super) fn push_config_to_all(shared: &Arc<Shared>) {
    let Some((version, json)) = shared.sessions.config() else { return };
    for (key, link) in shared.sessions.links() {
        shared.tasks.spawn(push_config(Arc::clone(shared), key, link, version, json.clone()));
    }
}

async fn push_config(shared: Arc<Shared>, key: SessionKey, link: Link, version: i32, json: Bytes) {
    let push = async {
        match &link.channel {
            Channel::Http2(channel) => push_http2(channel.clone(), version, &json).await,
            Channel::Quic(connection) => push_quic(connection, version, &json).await,
        }
    };
    let answer = tokio::select! {
        answer = tokio::time::timeout(CONFIG_DEADLINE, push) => answer,
        () = shared.stop.cancelled() => return,
    };
    let ack = match answer {
        Ok(Ok((applied, error))) => ConfigAck { sent: version, applied: Ok(applied), error },
        Ok(Err(error)) => ConfigAck { sent: version, applied: Err(error.to_string()), error: String::new() },
        Err(_) => ConfigAck { sent: version, applied: Err("no answer in time".into()), error: String::new() },
    };
    shared.sessions.set_config_ack(key, ack);
}

#[derive(serde::Deserialize)]
struct PushAnswer {
    #[serde(rename = "lastAppliedVersion")]
    last_applied: i32,
    /// A text or null; some connectors send other things here.
    #[serde(default)]
    err: serde_json::Value,
}

async fn push_http2(channel: h2::client::SendRequest<Bytes>, version: i32, json: &[u8]) -> Result<(i32, String), LinkError> {
    let mut body = format!("{{\"version\":{version},\"config\":").into_bytes();
    body.extend_from_slice(json);
    body.push(b'}');
    let mut request = Request::builder().method(Method::POST).uri("http://edge.local/").body(())?;
    let headers = request.headers_mut();
    headers.insert(headers::UPGRADE, HeaderValue::from_static(headers::UPGRADE_CONFIGURATION));
    headers.insert(http::header::CONTENT_LENGTH, body.len().into());
    let (answer, upload) = channel.ready().await?.send_request(request, false)?;
    let mut upload = Upload::http2(upload);
    upload.send(body.into()).await?;
    upload.finish();
    let (parts, stream) = answer.await?.into_parts();
    if parts.status != StatusCode::OK {
        return Err(LinkError::Status);
    }
    let malformed = |what: &dyn std::fmt::Display| LinkError::Connector(format!("no answer to a configuration: {what}"));
    let answer = http_body_util::Limited::new(Body::H2(stream), MAX_ANSWER).collect().await.map_err(|e| malformed(&e))?;
    let answer: PushAnswer = serde_json::from_slice(&answer.to_bytes()).map_err(|e| malformed(&e))?;
    let error = match answer.err {
        serde_json::Value::Null => String::new(),
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    Ok((answer.last_applied, error))
}

async fn push_quic(connection: &quinn::Connection, version: i32, json: &[u8]) -> Result<(i32, String), LinkError> {
    let (send, mut receive) = connection.open_bi().await?;
    let mut upload = Upload::quic(send);
    let mut client = ConfigurationClient::new();
    let mut bytes = BytesMut::from(&RPC_SIGNATURE[..]);
    bytes.extend_from_slice(&client.start(version, json)?);
    upload.send(bytes.freeze()).await?;
    while let Some(chunk) = receive.read_chunk(64 * 1024, true).await? {
        let events = client.receive(&chunk.bytes);
        upload.send(client.take_output().into()).await?;
        match events?.into_iter().next() {
            Some(ConfigurationClientEvent::Answered { latest_applied, error }) => {
                upload.finish();
                return Ok((latest_applied, error));
            }
            Some(ConfigurationClientEvent::Failed(reason) | ConfigurationClientEvent::Aborted(reason)) => {
                return Err(LinkError::Connector(reason));
            }
            None => {}
        }
    }
    Err(LinkError::NoHead)
}
