//! Bodies on their way between a client and a connection. Bytes are passed on as they come and never collected.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_util::task::AbortOnDropHandle;

use super::link::{Command, LinkError, Upload};
use super::session::InFlight;
use crate::proxy::http::Body;
use crate::proxy::http::body::BodyError;

/// A response's body on its way to the client. Dropping it cancels the request, the upload included.
#[derive(Debug)]
pub(super) struct ResponseBody {
    inner: Body,
    /// Counted until the body is over.
    request: Option<InFlight>,
    /// Bytes until the connection is cut, if it is to be.
    kill: Option<u64>,
    /// The request's body, on its way.
    upload: Option<AbortOnDropHandle<()>>,
}

impl ResponseBody {
    /// An answer of the edge itself.
    pub(super) fn own(bytes: impl Into<Bytes>) -> Self {
        Self { inner: Body::full(bytes), request: None, kill: None, upload: None }
    }

    /// An answer that comes through a connection.
    pub(super) fn tunnelled(inner: Body, request: InFlight, kill: Option<u64>, upload: Option<AbortOnDropHandle<()>>) -> Self {
        Self { inner, request: Some(request), kill, upload }
    }

    fn count(&mut self, bytes: usize) {
        let Some(left) = self.kill else { return };
        self.kill = left.checked_sub(bytes as u64);
        if self.kill.is_none()
            && let Some(request) = &self.request
        {
            request.link.command(Command::Close("killed in the middle of a body".into()));
        }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.count(data.len());
                }
            }
            Some(Err(error)) => {
                if let Some(request) = self.request.take() {
                    request.cut(error.to_string());
                }
                self.upload = None;
            }
            None => {
                self.request = None;
                self.upload = None;
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.request.is_none() { self.inner.size_hint() } else { SizeHint::default() }
    }
}

/// Sends a request's body. A client that breaks off resets the stream, so that nobody takes the part for the whole.
pub(super) async fn pump(mut body: Incoming, mut upload: Upload) {
    while let Some(frame) = body.frame().await {
        // Trailers of requests are not part of the tunnel's protocol.
        let data = match frame.map(Frame::into_data) {
            Ok(Ok(data)) => data,
            Ok(Err(_)) => continue,
            Err(_) => return,
        };
        // When the far end wants no more it has answered, or will.
        if upload.send(data).await.is_err() {
            return;
        }
    }
    upload.finish();
}

/// How long the far end may go on after the client has said its last word.
const HALF_CLOSED: Duration = Duration::from_secs(10);

/// Passes bytes both ways between a client that has switched protocols and a connection, until either is done.
pub(super) async fn splice(client: impl AsyncRead + AsyncWrite, mut upload: Upload, mut body: Body) -> Result<(), LinkError> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let up = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(16 * 1024);
            match from_client.read_buf(&mut buffer).await {
                Ok(0) => break,
                Ok(_) => upload.send(buffer.split().freeze()).await?,
                Err(_) => return Ok(()),
            }
        }
        upload.finish();
        tokio::time::sleep(HALF_CLOSED).await;
        Ok(())
    };
    let down = async {
        let gone = |_| LinkError::NoHead;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| LinkError::Connector(e.to_string()))?;
            if let Ok(data) = frame.into_data() {
                to_client.write_all(&data).await.map_err(gone)?;
                to_client.flush().await.map_err(gone)?;
            }
        }
        to_client.shutdown().await.map_err(gone)
    };
    tokio::select! {
        result = up => result,
        result = down => result,
    }
}
