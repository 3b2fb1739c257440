//! Clients: send what a plan says, read what comes, and compare all of it with what has to come.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use crate::body::{self, Check, Way};
use crate::ledger::{Loss, Outcome, Stage};
use crate::plan::{End, Kind, Plan};
use crate::routes::CONFIG;

type Out = UnsyncBoxBody<Bytes, Infallible>;

/// Longest life of any request: beyond it, it hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a connection to the edge is kept; the edge keeps it for longer.
const KEEP: Duration = Duration::from_secs(5);
/// Bytes of a piece of an upload, and of what a slow client reads between two pauses.
const PIECE: usize = 8192;

/// The clients of one edge.
#[derive(Debug)]
pub(crate) struct Clients {
    edge: SocketAddr,
    idle: Mutex<Vec<(http1::SendRequest<Out>, Instant)>>,
}

/// Why a request ended before its end.
enum Fault {
    Lost(Stage, String),
    Wrong(String),
}

/// What is known of the way of a request.
#[derive(Default)]
struct Path {
    connection: Option<uuid::Uuid>,
}

impl Clients {
    pub(crate) fn new(edge: SocketAddr) -> Self {
        Self { edge, idle: Mutex::default() }
    }

    /// One request from its beginning to its end. `acked`: the configuration that every connector has confirmed; an answer by
    /// an older one is wrong.
    pub(crate) async fn run(&self, plan: &Plan, acked: u64) -> Outcome {
        let mut way = Path::default();
        let exchange = async {
            match plan.kind {
                Kind::Http => self.http(plan, acked, &mut way).await,
                Kind::Grpc => self.grpc(plan, acked, &mut way).await,
                Kind::WebSocket(messages) => self.websocket(plan, messages, &mut way).await,
            }
        };
        let ended = match plan.cancel {
            Some(after) => match timeout(after, exchange).await {
                Ok(ended) => ended,
                Err(_) => return Outcome::Canceled,
            },
            None => timeout(LIMIT, exchange).await.unwrap_or_else(|_| Err(Fault::Wrong(format!("no end after {LIMIT:?}")))),
        };
        match ended {
            Ok(()) => Outcome::Fine,
            Err(Fault::Wrong(error)) => Outcome::Wrong(format!("{} through {:?}: {error}", plan.describe(), way.connection)),
            // Over QUIC a reset can overtake the head that was sent before it, and the edge's own connection to the client ends
            // without a head that it has not written yet: any end but a whole one is right.
            Err(Fault::Lost(stage, _)) if plan.end != End::Whole && stage != Stage::Unassigned => Outcome::Broken,
            Err(Fault::Lost(stage, text)) => Outcome::Lost(Box::new(Loss {
                id: plan.id,
                what: plan.describe(),
                stage,
                connection: way.connection,
                upload: plan.upload.is_some() || plan.kind != Kind::Http,
                text,
                at: Instant::now(),
            })),
        }
    }

    async fn http(&self, plan: &Plan, acked: u64, way: &mut Path) -> Result<(), Fault> {
        let (response, sender) = if plan.h2c {
            (self.send_h2c(request(plan, true)?).await?, None)
        } else {
            let (response, sender) = self.send(plan).await?;
            (response, Some(sender))
        };
        let (head, body) = response.into_parts();
        way.note(&head.headers);
        if let Some(fault) = failure(head.status.as_u16(), &head.headers) {
            return Err(explained(fault, body).await);
        }
        check_head(plan, head.status.as_u16(), &head.headers, acked)?;
        read(plan, body).await?;
        if let Some(mut sender) = sender
            && timeout(Duration::from_millis(50), sender.ready()).await.is_ok_and(|ready| ready.is_ok())
        {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push((sender, Instant::now()));
        }
        Ok(())
    }

    /// Over a connection that waits, or a new one.
    async fn send(&self, plan: &Plan) -> Result<(Response<Incoming>, http1::SendRequest<Out>), Fault> {
        let mut request = request(plan, false)?;
        // What an edge does with the rest of a body after an early answer closes the connection; nobody else should meet it.
        while let Some(mut sender) = if plan.upload.is_none() { self.waiting() } else { None } {
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, sender)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(Fault::Lost(Stage::Head, error.into_error().to_string())),
                },
            }
        }
        let io = TokioIo::new(self.dial().await?);
        let (mut sender, connection) = http1::handshake(io).await.map_err(lost(Stage::Head))?;
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(lost(Stage::Head))?;
        Ok((response, sender))
    }

    async fn send_h2c(&self, request: Request<Out>) -> Result<Response<Incoming>, Fault> {
        let io = TokioIo::new(self.dial().await?);
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.map_err(lost(Stage::Head))?;
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(lost(Stage::Head))
    }

    async fn dial(&self) -> Result<TcpStream, Fault> {
        let tcp = TcpStream::connect(self.edge).await.map_err(lost(Stage::Head))?;
        let _ = tcp.set_nodelay(true);
        Ok(tcp)
    }

    fn waiting(&self) -> Option<http1::SendRequest<Out>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(sender, since)| since.elapsed() < KEEP && sender.is_ready());
        idle.pop().map(|(sender, _)| sender)
    }

    async fn grpc(&self, plan: &Plan, acked: u64, way: &mut Path) -> Result<(), Fault> {
        let message = body::body(plan.id, Way::Up, plan.down);
        let mut frame = vec![0];
        frame.extend_from_slice(&u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
        frame.extend_from_slice(&message);
        let frame = Bytes::from(frame);
        let request = Request::post(format!("http://{}/soak.Echo/Say", plan.host))
            .header("te", "trailers")
            .header("content-type", "application/grpc")
            .header("x-soak-id", plan.id)
            .body(Full::new(frame.clone()).boxed_unsync())
            .map_err(|e| Fault::Wrong(e.to_string()))?;
        let (head, body) = self.send_h2c(request).await?.into_parts();
        way.note(&head.headers);
        let refused = head.headers.get("grpc-status").filter(|status| *status != "0");
        if refused.is_some() {
            let text = head.headers.get("grpc-message").and_then(|m| m.to_str().ok()).unwrap_or_default().to_owned();
            return Err(Fault::Lost(
                Stage::Proxy,
                format!("{} {text}", String::from_utf8_lossy(head.headers["grpc-status"].as_bytes())),
            ));
        }
        if let Some(fault) = failure(head.status.as_u16(), &head.headers) {
            return Err(explained(fault, body).await);
        }
        check_head(plan, head.status.as_u16(), &head.headers, acked)?;
        let whole = body.collect().await.map_err(lost(Stage::Body))?;
        let trailers = whole.trailers().cloned().unwrap_or_default();
        if whole.to_bytes() != frame {
            return Err(Fault::Wrong("the message came back changed".into()));
        }
        let id = HeaderValue::from(plan.id);
        if trailers.get("grpc-status").is_none_or(|s| s != "0") || trailers.get("x-soak-id") != Some(&id) {
            return Err(Fault::Wrong(format!("trailers {trailers:?}")));
        }
        Ok(())
    }

    async fn websocket(&self, plan: &Plan, messages: u64, way: &mut Path) -> Result<(), Fault> {
        let wrong = |e: &dyn std::fmt::Display| Fault::Wrong(e.to_string());
        let mut request = format!("ws://{}/ws", plan.host).into_client_request().map_err(|e| wrong(&e))?;
        request.headers_mut().insert("x-soak-id", plan.id.into());
        let tcp = self.dial().await?;
        let (mut ws, response) = match tokio_tungstenite::client_async(request, tcp).await {
            Ok(opened) => opened,
            Err(WsError::Http(response)) => {
                way.note(response.headers());
                let stage = failure(response.status().as_u16(), response.headers()).unwrap_or(Stage::Proxy);
                let text = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
                return Err(Fault::Lost(written_by(stage, &text), format!("{}: {}", response.status(), text.replace('\n', " "))));
            }
            Err(error) => return Err(Fault::Lost(Stage::Head, error.to_string())),
        };
        way.note(response.headers());
        if response.headers().get("x-soak-id") != Some(&HeaderValue::from(plan.id)) {
            return Err(Fault::Wrong("the answer is another request's".into()));
        }
        for n in 0..messages {
            let len = [10, 1000, 30_000][usize::try_from(n % 3).unwrap_or(0)];
            let sent = body::body(plan.id + n, Way::Up, len);
            ws.send(Message::Binary(sent.clone())).await.map_err(lost(Stage::Body))?;
            match ws.next().await {
                Some(Ok(Message::Binary(echo))) if echo == sent => {}
                Some(Ok(other)) => return Err(Fault::Wrong(format!("message {n} came back as {} bytes", other.len()))),
                Some(Err(error)) => return Err(Fault::Lost(Stage::Body, error.to_string())),
                None => return Err(Fault::Lost(Stage::Body, "the session ended".into())),
            }
            sleep(Duration::from_millis(50)).await;
        }
        ws.close(None).await.map_err(lost(Stage::Body))?;
        while let Some(message) = ws.next().await {
            message.map_err(lost(Stage::Body))?;
        }
        Ok(())
    }
}

impl Path {
    fn note(&mut self, headers: &HeaderMap) {
        self.connection = headers.get("x-cftunnel-connection-id").and_then(|id| id.to_str().ok()?.parse().ok());
    }
}

fn lost<E: std::fmt::Display>(stage: Stage) -> impl Fn(E) -> Fault {
    move |error| Fault::Lost(stage, error.to_string())
}

fn request(plan: &Plan, absolute: bool) -> Result<Request<Out>, Fault> {
    let target = if absolute { format!("http://{}{}", plan.host, plan.target()) } else { plan.target() };
    let mut builder = Request::builder().method(plan.method).uri(target).header("x-soak-id", plan.id);
    if !absolute {
        builder = builder.header(header::HOST, plan.host);
    }
    let Some(upload) = &plan.upload else {
        return builder.body(Empty::new().boxed_unsync()).map_err(|e| Fault::Wrong(e.to_string()));
    };
    if !upload.chunked {
        builder = builder.header(header::CONTENT_LENGTH, upload.len);
    }
    let (bytes, pause) = (body::body(plan.id, Way::Up, upload.len), upload.pause);
    let pieces = futures_util::stream::unfold(0, move |at| {
        let bytes = bytes.clone();
        async move {
            if at >= bytes.len() {
                return None;
            }
            if !pause.is_zero() {
                sleep(pause).await;
            }
            let end = (at + PIECE).min(bytes.len());
            Some((Ok(Frame::data(bytes.slice(at..end))), end))
        }
    });
    builder.body(StreamBody::new(pieces).boxed_unsync()).map_err(|e| Fault::Wrong(e.to_string()))
}

/// Whose failure an answer tells of, if it is not the backend's answer.
fn failure(status: u16, headers: &HeaderMap) -> Option<Stage> {
    if headers.contains_key("x-soak-id") {
        None
    } else if status == 530 {
        Some(Stage::Unassigned)
    } else {
        Some(Stage::Proxy)
    }
}

/// A failure with its text, which says whether edge or proxy wrote it.
async fn explained(stage: Stage, body: Incoming) -> Fault {
    let text = match timeout(Duration::from_secs(5), body.collect()).await {
        Ok(Ok(body)) => String::from_utf8_lossy(&body.to_bytes()).trim().replace('\n', " "),
        _ => String::new(),
    };
    Fault::Lost(written_by(stage, &text), text)
}

/// Tells answers of the edge from those of the proxy. To HEAD neither can say it; then the end of the connection tells.
fn written_by(stage: Stage, text: &str) -> Stage {
    let edge = text.is_empty() || text.starts_with("error code");
    if stage == Stage::Proxy && edge { Stage::Edge } else { stage }
}

fn check_head(plan: &Plan, status: u16, headers: &HeaderMap, acked: u64) -> Result<(), Fault> {
    let wrong = |what: String| Err(Fault::Wrong(what));
    if headers.get("x-soak-id") != Some(&HeaderValue::from(plan.id)) {
        return wrong(format!("the answer is that of request {:?}", headers.get("x-soak-id")));
    }
    if status != plan.status {
        return wrong(format!("status {status}"));
    }
    let by: Option<u64> = headers.get(CONFIG).and_then(|n| n.to_str().ok()?.parse().ok());
    if by.is_none_or(|by| by < acked) {
        return wrong(format!("served by configuration {by:?} after {acked} was confirmed"));
    }
    if plan.upload.is_some() && headers.get("x-soak-upload").is_none_or(|verdict| verdict != "right") {
        return wrong(format!("the backend says of the upload: {:?}", headers.get("x-soak-upload")));
    }
    let length: Option<usize> = headers.get(header::CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse().ok());
    let has_length = plan.kind == Kind::Http && !plan.chunked && !matches!(plan.status, 204 | 304);
    if has_length && length != Some(plan.down) {
        return wrong(format!("length {length:?}"));
    }
    Ok(())
}

async fn read(plan: &Plan, mut body: Incoming) -> Result<(), Fault> {
    let mut check = Check::new(plan.id, Way::Down, plan.body_len());
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(lost(Stage::Body))?;
        let Ok(data) = frame.into_data() else { continue };
        check.take(&data).map_err(Fault::Wrong)?;
        // By bytes: a frame can be a single datagram, and a thousand pauses last longer than a request may.
        read += data.len();
        while !plan.client_pause.is_zero() && read >= PIECE {
            read -= PIECE;
            sleep(plan.client_pause).await;
        }
    }
    check.end().map_err(Fault::Wrong)
}
