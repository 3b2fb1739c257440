//! Copying of bytes between a client and a backend after a switch of protocols. What the bytes are is not known here.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio_util::sync::CancellationToken;

/// Piece that is copied at once.
const COPY_BUFFER: usize = 16 * 1024;
/// How long one direction may go on after the other has ended.
const HALF_OPEN: Duration = Duration::from_secs(1);

/// Copies bytes both ways until either side ends, then lets the other direction finish for a moment: WebSockets know no half
/// close, but what is on its way has to arrive.
///
/// # Errors
/// When a side fails; the streams are to be reset then, not ended.
pub(in crate::proxy) async fn relay(
    mut a: impl AsyncRead + AsyncWrite + Unpin,
    mut b: impl AsyncRead + AsyncWrite + Unpin,
) -> std::io::Result<()> {
    {
        let ((from_a, to_a), (from_b, to_b)) = (tokio::io::split(&mut a), tokio::io::split(&mut b));
        let ended = CancellationToken::new();
        let both = async { tokio::try_join!(copy(from_a, to_b, &ended), copy(from_b, to_a, &ended)) };
        let limit = async {
            ended.cancelled().await;
            tokio::time::sleep(HALF_OPEN).await;
        };
        tokio::select! {
            result = both => drop(result?),
            () = limit => {}
        }
    }
    let goodbye = async { tokio::try_join!(a.shutdown(), b.shutdown()) };
    tokio::time::timeout(HALF_OPEN, goodbye).await.map_err(|_| std::io::ErrorKind::TimedOut)?.map(|_| ())
}

async fn copy<A: AsyncRead, B: AsyncWrite>(
    mut from: ReadHalf<A>,
    mut to: WriteHalf<B>,
    ended: &CancellationToken,
) -> std::io::Result<()> {
    let mut buffer = vec![0; COPY_BUFFER];
    loop {
        match from.read(&mut buffer).await? {
            0 => break,
            n => {
                to.write_all(&buffer[..n]).await?;
                // Never keep a piece across a wait: the other side may answer only when it has it.
                to.flush().await?;
            }
        }
    }
    ended.cancel();
    to.shutdown().await
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_relay_ends_both_ways_when_one_side_ends_and_loses_nothing() {
        let ((client, edge), (backend, server)) = (duplex(64), duplex(64));
        let relay = tokio::spawn(relay(edge, backend));
        let (mut client, mut server) = (client, server);
        client.write_all(b"hello").await.expect("written");
        client.shutdown().await.expect("ended");
        let mut seen = Vec::new();
        server.read_to_end(&mut seen).await.expect("read");
        assert_eq!(seen, b"hello");
        server.write_all(b"goodbye").await.expect("written");
        let mut answer = [0; 7];
        client.read_exact(&mut answer).await.expect("read");
        assert_eq!(&answer, b"goodbye");
        // The server never ends its side: the relay does not wait for it.
        assert!(relay.await.expect("no panic").is_ok());
    }
}
