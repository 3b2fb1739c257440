//! An edge that breaks the rules or leans on them, frame by frame. Each limit is shown from outside: what the service sees, what
//! the edge gets, and that another connection of the same service is none the worse.
//!
//! Time is paused: it passes only when nothing can move, so a wait that ends has ended for good, on a busy machine too.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex};
use tokio::sync::mpsc;

use super::*;
use crate::proxy::connector::tests::{App, app, beside, counted};
use crate::proxy::http::Body;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// `:status: 200`, whole, in the static table of HPACK (RFC 7541, appendix A).
const STATUS_200: u8 = 0x88;
const INITIAL_WINDOW_SIZE: u16 = 4;
const LARGEST_WINDOW: u32 = (1 << 31) - 1;
const PATIENCE: Duration = Duration::from_secs(60);
/// What the pipe to the connector holds: sent, but not accepted.
const PIPE: usize = 64 << 10;
/// Uploads whose windows fill the connection's.
const STALLED: u32 = CONNECTION_WINDOW / STREAM_WINDOW;
const _: () = assert!(STALLED >= 32, "a few slow backends must not stop every upload");

#[derive(Debug)]
struct Frame {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
    /// What the edge had sent by then.
    sent: usize,
}

impl Frame {
    /// The code of a RST_STREAM or a GOAWAY.
    fn reason(&self) -> Reason {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("four bytes")).into()
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("three bytes").to_be_bytes();
    let stream = stream.to_be_bytes();
    [&length[1..], &[kind, flags], &stream, payload].concat()
}

fn setting(id: u16, value: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

fn window_update(stream: u32, more: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &u32::from(Reason::CANCEL).to_be_bytes())
}

/// An HPACK string without Huffman coding (RFC 7541 §5.2).
fn string(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    match text.len() {
        length @ 0..127 => bytes.push(u8::try_from(length).expect("short")),
        length => {
            bytes.push(127);
            let mut rest = length - 127;
            while rest >= 128 {
                bytes.push(u8::try_from(rest % 128).expect("seven bits") | 128);
                rest /= 128;
            }
            bytes.push(u8::try_from(rest).expect("seven bits"));
        }
    }
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn literal(name: &str, value: &str) -> Vec<u8> {
    [vec![0], string(name), string(value)].concat()
}

fn request(path: &str) -> Vec<u8> {
    [(":method", "POST"), (":scheme", "https"), (":authority", "app.example.test"), (":path", path)]
        .map(|(name, value)| literal(name, value))
        .concat()
}

/// A request without a body.
fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &request(path))
}

/// The head of a request that goes on.
fn post(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &request(path))
}

fn data(stream: u32, bytes: usize) -> Vec<u8> {
    const PIECE: usize = MAX_FRAME as usize;
    let frames = (0..bytes).step_by(PIECE).map(|at| frame(DATA, 0, stream, &vec![0; PIECE.min(bytes - at)]));
    frames.collect::<Vec<_>>().concat()
}

/// The identifier of the `n`th stream of an edge.
fn id(n: u32) -> u32 {
    2 * n + 1
}

struct Edge {
    frames: mpsc::UnboundedReceiver<Frame>,
    write: WriteHalf<DuplexStream>,
    sent: Arc<AtomicUsize>,
    link: Link,
    /// Of an edge that reads nothing.
    unread: Option<ReadHalf<DuplexStream>>,
}

/// Reads frames to the end of the connection.
async fn read(mut from: ReadHalf<DuplexStream>, to: mpsc::UnboundedSender<Frame>, sent: Arc<AtomicUsize>) -> std::io::Result<()> {
    loop {
        let mut head = [0; 9];
        from.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).expect("fits")];
        from.read_exact(&mut payload).await?;
        let stream = u32::from_be_bytes(head[5..].try_into().expect("four bytes"));
        drop(to.send(Frame { kind: head[3], stream, payload, sent: sent.load(Ordering::Relaxed) }));
    }
}

impl Edge {
    /// Connects an edge that reads what it is sent.
    async fn connect(streams: Streams<App>) -> Self {
        let mut edge = Self::deaf(streams).await;
        let (to, frames) = mpsc::unbounded_channel();
        edge.frames = frames;
        tokio::spawn(read(edge.unread.take().expect("not read yet"), to, Arc::clone(&edge.sent)));
        edge
    }

    /// Connects an edge that reads nothing.
    async fn deaf(streams: Streams<App>) -> Self {
        let (near, far) = duplex(PIPE);
        let (unread, mut write) = tokio::io::split(near);
        let greeting = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[])].concat();
        write.write_all(&greeting).await.expect("written");
        let link = serve(far, None, streams).await.expect("a link");
        // The connector's windows hold from here on.
        write.write_all(&frame(SETTINGS, ACK, 0, &[])).await.expect("written");
        let (_, frames) = mpsc::unbounded_channel();
        Self { frames, write, sent: Arc::default(), link, unread: Some(unread) }
    }

    /// Sends for as long as the connector takes it; false once it does not.
    async fn send(&mut self, bytes: &[u8]) -> bool {
        for piece in bytes.chunks(PIPE) {
            if self.write.write_all(piece).await.is_err() {
                return false;
            }
            self.sent.fetch_add(piece.len(), Ordering::Relaxed);
        }
        true
    }

    /// The next frame of this kind; `None` when the connection ends without one.
    async fn next(&mut self, kind: u8) -> Option<Frame> {
        self.find(|frame| frame.kind == kind).await
    }

    async fn find(&mut self, wanted: impl Fn(&Frame) -> bool) -> Option<Frame> {
        let next = async {
            loop {
                let frame = self.frames.recv().await?;
                if frame.kind == PING {
                    let pong = self::frame(PING, ACK, 0, &frame.payload);
                    drop(self.write.write_all(&pong).await);
                }
                if wanted(&frame) {
                    return Some(frame);
                }
            }
        };
        timeout(PATIENCE, next).await.expect("a frame or the end")
    }

    /// Whether a request on this connection is answered.
    async fn answers(&mut self, stream: u32) -> bool {
        self.send(&get(stream, "/")).await;
        self.ok(stream).await
    }

    async fn ok(&mut self, stream: u32) -> bool {
        let head = self.find(|frame| frame.stream == stream && matches!(frame.kind, HEADERS | RST_STREAM)).await;
        head.is_some_and(|head| head.kind == HEADERS && head.payload[0] == STATUS_200)
    }

    /// The end of the connection: what the edge is told, and what the supervisor is.
    async fn end(&mut self) -> (Frame, LinkError) {
        let goaway = self.next(GOAWAY).await.expect("told why");
        (goaway, timeout(PATIENCE, self.link.ended()).await.expect("the end"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_requests_and_resets_leaves_nothing_behind() {
    const FLOOD: u32 = 20_000;
    let (streams, seen) = counted();
    let other = beside(&streams);
    let mut edge = Edge::connect(streams).await;
    for n in 0..FLOOD {
        if !edge.send(&[get(id(n), "/hold"), reset(id(n))].concat()).await {
            break;
        }
    }
    // What is cancelled before the connector came to look at it is counted, and too much of that ends the connection.
    edge.send(&get(id(FLOOD), "/")).await;
    let last = edge.find(|frame| frame.kind == GOAWAY || (frame.kind, frame.stream) == (HEADERS, id(FLOOD))).await;
    let last = last.expect("an answer or a reason");
    assert!(last.kind == HEADERS || last.reason() == Reason::ENHANCE_YOUR_CALM, "{last:?}");
    seen.gone().await;
    assert!(seen.most() <= RESET_STREAMS, "{} at once", seen.most());
    assert!(Edge::connect(other).await.answers(1).await);
}

#[tokio::test(start_paused = true)]
async fn a_head_without_an_end_is_cut_off() {
    // Field lines, one long value, and nothing at all.
    let fields = literal("x", &"y".repeat(4000)).repeat(4);
    let value = vec![b'y'; 16_000];
    let start = [request("/"), vec![0], string("x"), vec![127, 0xff, 0xff, 0xff, 0x7f]].concat();
    for (start, piece) in [(request("/"), &fields[..]), (start, &value[..]), (request("/"), &[][..])] {
        let (streams, seen) = counted();
        let other = beside(&streams);
        let mut edge = Edge::connect(streams).await;
        edge.send(&frame(HEADERS, END_STREAM, 1, &start)).await;
        for _ in 0..10_000 {
            if !edge.send(&frame(CONTINUATION, 0, 1, piece)).await {
                break;
            }
        }
        let (goaway, error) = edge.end().await;
        assert_eq!(goaway.reason(), Reason::ENHANCE_YOUR_CALM, "{error}");
        assert!(goaway.sent < 2 * MAX_HEADER_LIST as usize, "{} bytes were taken", goaway.sent);
        assert_eq!(seen.all(), 0);
        assert!(Edge::connect(other).await.answers(1).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_is_too_large_is_refused_alone() {
    let (streams, seen) = counted();
    let mut edge = Edge::connect(streams).await;
    let block = [request("/"), literal("x", &"y".repeat(8000)).repeat(140)].concat();
    assert!(block.len() > MAX_HEADER_LIST as usize);
    let mut pieces = block.chunks(16_000);
    edge.send(&frame(HEADERS, END_STREAM, 1, pieces.next().expect("some"))).await;
    let last = pieces.len() - 1;
    for (i, piece) in pieces.enumerate() {
        edge.send(&frame(CONTINUATION, if i == last { END_HEADERS } else { 0 }, 1, piece)).await;
    }
    assert!(!edge.ok(1).await, "a status or a reset");
    assert_eq!(seen.all(), 0);
    assert!(edge.answers(3).await);
}

#[tokio::test(start_paused = true)]
async fn an_edge_that_wants_answers_and_reads_none_is_not_read_either() {
    for flood in [frame(PING, 0, 0, &[0; 8]), setting(INITIAL_WINDOW_SIZE, 1), get(0, "/")] {
        let (streams, seen) = counted();
        let other = beside(&streams);
        let mut edge = Edge::deaf(streams).await;
        let (start, mut stream) = (Instant::now(), 0);
        let mut flood = flood;
        for _ in 0..1_000_000 {
            if flood[3] == HEADERS {
                flood = get(id(stream), "/");
                stream += 1;
            }
            if !edge.send(&flood).await {
                break;
            }
        }
        let error = timeout(PATIENCE, edge.link.ended()).await.expect("the end");
        assert!(matches!(error, LinkError::Silent), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10));
        let sent = edge.sent.load(Ordering::Relaxed);
        assert!(sent < 1 << 20, "{sent} bytes were taken");
        seen.gone().await;
        assert!(Edge::connect(other).await.answers(1).await);
    }
}

#[tokio::test(start_paused = true)]
async fn windows_that_overflow_are_errors_of_their_stream_or_connection() {
    let (streams, seen) = counted();
    let other = beside(&streams);
    let mut edge = Edge::connect(streams).await;
    edge.send(&[post(1, "/hold"), window_update(1, LARGEST_WINDOW), window_update(1, LARGEST_WINDOW)].concat()).await;
    let reset = edge.next(RST_STREAM).await.expect("a reset");
    assert_eq!((reset.stream, reset.reason()), (1, Reason::FLOW_CONTROL_ERROR));
    assert!(edge.answers(3).await);
    edge.send(&[window_update(0, LARGEST_WINDOW), window_update(0, LARGEST_WINDOW)].concat()).await;
    assert_eq!(edge.end().await.0.reason(), Reason::FLOW_CONTROL_ERROR);
    seen.gone().await;
    assert!(Edge::connect(other).await.answers(1).await);
}

#[tokio::test(start_paused = true)]
async fn more_than_a_window_is_not_taken() {
    let (streams, seen) = counted();
    let other = beside(&streams);
    let mut edge = Edge::connect(streams).await;
    let window = data(1, STREAM_WINDOW as usize);
    edge.send(&[post(1, "/hold"), window, data(1, 1)].concat()).await;
    let reset = edge.next(RST_STREAM).await.expect("a reset");
    assert_eq!((reset.stream, reset.reason()), (1, Reason::FLOW_CONTROL_ERROR));
    assert!(edge.answers(3).await);
    seen.gone().await;
    for n in 2..=STALLED + 2 {
        edge.send(&[post(id(n), "/hold"), data(id(n), STREAM_WINDOW as usize)].concat()).await;
    }
    assert_eq!(edge.end().await.0.reason(), Reason::FLOW_CONTROL_ERROR);
    seen.gone().await;
    assert!(Edge::connect(other).await.answers(1).await);
}

#[tokio::test(start_paused = true)]
async fn uploads_that_stall_leave_room_for_others() {
    let (streams, seen) = counted();
    let mut edge = Edge::connect(streams).await;
    for n in 1..STALLED {
        edge.send(&[post(id(n), "/hold"), data(id(n), STREAM_WINDOW as usize)].concat()).await;
    }
    let upload = id(STALLED);
    edge.send(&[post(upload, "/read"), data(upload, STREAM_WINDOW as usize), frame(DATA, END_STREAM, upload, &[])].concat())
        .await;
    assert!(edge.ok(upload).await, "there is a window for one more");
    assert_eq!(seen.live(), STALLED as usize - 1);
    // The last window goes; what has no body needs none, and an upload that is given up gives its window back.
    let last = upload + 2;
    edge.send(&[post(last, "/hold"), data(last, STREAM_WINDOW as usize)].concat()).await;
    assert!(edge.answers(last + 2).await);
    edge.send(&reset(last)).await;
    let window = edge.find(|frame| (frame.kind, frame.stream) == (WINDOW_UPDATE, 0)).await;
    assert!(window.is_some());
}

#[tokio::test(start_paused = true)]
async fn uploads_that_nobody_takes_are_given_up_when_others_need_the_room() {
    let (streams, seen) = counted();
    let mut edge = Edge::connect(streams).await;
    // Older than all others, and in nobody's way.
    edge.send(&[post(id(0), "/hold"), data(id(0), 1)].concat()).await;
    for n in 1..STALLED {
        edge.send(&[post(id(n), "/hold"), data(id(n), STREAM_WINDOW as usize)].concat()).await;
    }
    let oldest = |frame: &Frame| frame.kind == HEADERS && frame.stream == id(1) && frame.payload[0] != STATUS_200;
    let room = |frame: &Frame| (frame.kind, frame.stream) == (WINDOW_UPDATE, 0);
    let (mut refused, mut has_room) = (false, false);
    while !(refused && has_room) {
        let frame = edge.find(|frame| oldest(frame) || room(frame)).await.expect("the connection stays");
        refused |= oldest(&frame);
        has_room |= room(&frame);
    }
    let upload = id(STALLED + 1);
    edge.send(&[post(upload, "/read"), data(upload, STREAM_WINDOW as usize), frame(DATA, END_STREAM, upload, &[])].concat())
        .await;
    assert!(edge.ok(upload).await, "others go on");
    assert_eq!(seen.live(), STALLED as usize / 2, "there is room for the rest");
}

/// Bodies without an end, and how much of them was taken, a window each that nobody has read yet included.
async fn endless(bodies: usize, window: u32) -> (Vec<Body>, Arc<AtomicUsize>) {
    let (near, far) = duplex(1 << 20);
    let mut server = h2::server::Builder::new();
    server.initial_window_size(window).initial_connection_window_size(LARGEST_WINDOW);
    let (client, server) = tokio::join!(h2::client::handshake(near), server.handshake::<_, Bytes>(far));
    let ((mut client, connection), mut server) = (client.expect("a client"), server.expect("a server"));
    tokio::spawn(connection);
    let (taken, mut made) = (Arc::new(AtomicUsize::new(0)), Vec::new());
    let mut kept = Vec::new();
    for _ in 0..bodies {
        let (_, mut writer) = client.send_request(Request::new(()), false).expect("a request");
        let (request, respond) = server.accept().await.expect("a stream").expect("a request");
        kept.push(respond);
        made.push(Body::H2(request.into_body()));
        let taken = Arc::clone(&taken);
        tokio::spawn(async move {
            while let Ok(n) = std::future::poll_fn(|cx| io::poll_room(&mut writer, 16_384, cx)).await {
                writer.send_data(vec![0; n].into(), false).expect("sent");
                taken.fetch_add(n, Ordering::Relaxed);
            }
        });
    }
    tokio::spawn(async move {
        let _kept = (client, kept);
        while server.accept().await.is_some() {}
    });
    (made, taken)
}

#[tokio::test(start_paused = true)]
async fn responses_that_nobody_reads_hold_a_buffer_each() {
    const REQUESTS: u32 = 500;
    const WINDOW: u32 = 16 << 10;
    let (bodies, taken) = endless(REQUESTS as usize, WINDOW).await;
    let bodies = Mutex::new(bodies);
    let streams = app(move |_, _| {
        let body = bodies.lock().expect("not poisoned").pop().unwrap_or_default();
        async move { Response::new(body) }
    });
    let mut edge = Edge::deaf(streams).await;
    edge.send(&[setting(INITIAL_WINDOW_SIZE, LARGEST_WINDOW), window_update(0, LARGEST_WINDOW - 65_535)].concat()).await;
    for n in 0..REQUESTS {
        edge.send(&get(id(n), "/")).await;
    }
    assert!(matches!(edge.link.ended().await, LinkError::Silent));
    let taken = taken.load(Ordering::Relaxed);
    // What is buffered, a piece before and after it, and what the backend's own window lets through.
    let most = REQUESTS as usize * (SEND_BUFFER + 3 * WINDOW as usize);
    assert!((PIPE..=most).contains(&taken), "{taken} bytes were taken for an edge that reads none");
}

#[tokio::test(start_paused = true)]
async fn a_response_without_a_window_waits_and_the_others_go_on() {
    let (streams, _) = counted();
    let mut edge = Edge::connect(streams).await;
    edge.send(&[setting(INITIAL_WINDOW_SIZE, 0), get(1, "/big")].concat()).await;
    assert!(edge.ok(1).await, "the head needs no window");
    edge.send(&[setting(INITIAL_WINDOW_SIZE, 100), get(3, "/"), window_update(1, 0x8000_0000 - 1 - 100)].concat()).await;
    // The first body wants more than the connection's window, and a larger one; it must not have all of it.
    assert!(edge.ok(3).await);
    edge.send(&window_update(0, 1 << 21)).await;
    let body = edge.find(|frame| frame.kind == DATA && frame.stream == 3).await.expect("a body");
    assert_eq!(body.payload, b"hello");
}

#[tokio::test(start_paused = true)]
async fn streams_are_opened_up_to_the_limit_and_again_when_some_end() {
    let (streams, seen) = counted();
    let mut edge = Edge::connect(streams).await;
    for n in 0..MAX_STREAMS {
        assert!(edge.send(&post(id(n), "/hold")).await);
    }
    edge.send(&post(id(MAX_STREAMS), "/hold")).await;
    let refused = edge.next(RST_STREAM).await.expect("a reset");
    assert_eq!((refused.stream, refused.reason()), (id(MAX_STREAMS), Reason::REFUSED_STREAM));
    seen.reach(MAX_STREAMS as usize).await;
    edge.send(&reset(1)).await;
    assert!(edge.answers(id(MAX_STREAMS + 1)).await);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_http2_ends_the_connection() {
    let large = frame(DATA, 0, 1, &vec![0; MAX_FRAME as usize + 1]);
    for (bytes, reason) in [
        (large, Reason::FRAME_SIZE_ERROR),
        (frame(DATA, 0, 0, b"x"), Reason::PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 2, &request("/")), Reason::PROTOCOL_ERROR),
        (frame(CONTINUATION, END_HEADERS, 1, &[]), Reason::PROTOCOL_ERROR),
        (frame(PING, 0, 0, &[0; 7]), Reason::PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 1, &[0xff; 9]), Reason::PROTOCOL_ERROR),
    ] {
        let (streams, seen) = counted();
        let other = beside(&streams);
        let mut edge = Edge::connect(streams).await;
        edge.send(&bytes).await;
        let (goaway, error) = edge.end().await;
        assert_eq!(goaway.reason(), reason, "{:?} {error}", &bytes[..9]);
        assert_eq!(seen.all(), 0);
        assert!(Edge::connect(other).await.answers(1).await);
    }
}

#[tokio::test(start_paused = true)]
async fn frames_of_unknown_kinds_are_passed_over() {
    let (streams, _) = counted();
    let mut edge = Edge::connect(streams).await;
    for kind in 0x0b..=0xff {
        edge.send(&frame(kind, 0xff, u32::from(kind), &[0xff; 100])).await;
    }
    assert!(edge.answers(1).await);
}

#[tokio::test(start_paused = true)]
async fn an_edge_that_speaks_something_else_is_no_link() {
    let (streams, _) = counted();
    let other = beside(&streams);
    let (mut near, far) = duplex(PIPE);
    near.write_all(b"GET / HTTP/1.1\r\nhost: app.example.test\r\n\r\n").await.expect("written");
    assert!(matches!(serve(far, None, streams).await, Err(LinkError::Http2(_))));
    assert!(Edge::connect(other).await.answers(1).await);
}

#[tokio::test(start_paused = true)]
async fn an_edge_that_falls_silent_inside_a_frame_is_found() {
    let (streams, seen) = counted();
    let mut edge = Edge::deaf(streams).await;
    let cut = post(3, "/hold");
    edge.send(&[&post(1, "/hold"), &cut[..cut.len() - 1]].concat()).await;
    let start = Instant::now();
    assert!(matches!(edge.link.ended().await, LinkError::Silent));
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(seen.all(), 1);
    seen.gone().await;
}
