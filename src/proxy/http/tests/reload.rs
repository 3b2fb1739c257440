//! Changes of the configuration while requests are under way.

use super::backend::{echo, saying, scripted};
use super::*;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_under_load_loses_nothing() {
    let (a, b) = (saying(OK).await, saying(OK).await);
    let f = Arc::new(plane(&h1(a.address)));
    let stop = tokio_util::sync::CancellationToken::new();
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (f, stop) = (Arc::clone(&f), stop.clone());
            tokio::spawn(async move {
                let mut sent = 0;
                while !stop.is_cancelled() {
                    let answer = f.send(get("/")).await;
                    assert_eq!((answer.status, answer.text()), (StatusCode::OK, "ok"));
                    sent += 1;
                }
                sent
            })
        })
        .collect();
    for round in 0..60 {
        // Endpoints and rules come and go together, in one document.
        let address = if round % 2 == 0 { b.address } else { a.address };
        f.plane.apply(&h1(address)).unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.cancel();
    let mut sent = 0;
    for client in clients {
        sent += client.await.unwrap();
    }
    assert!(sent > 100, "{sent}");
    f.idle().await;
}

#[tokio::test]
async fn a_request_on_a_removed_endpoint_finishes_and_its_connection_is_closed() {
    let (go, wait) = tokio::sync::oneshot::channel::<()>();
    let (seen, closed) = tokio::sync::oneshot::channel();
    let script = std::sync::Mutex::new(Some((wait, seen)));
    let slow = scripted(move |_, mut wire| {
        let (wait, seen) = script.lock().unwrap().take().unwrap();
        async move {
            wire.head().await;
            wire.write("HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nhalf").await;
            let _ = wait.await;
            wire.write("half").await;
            wire.drain().await;
            let _ = seen.send(());
        }
    })
    .await;
    let f = plane(&h1(slow.address));
    let inbound = Inbound { authority: "a.example".into(), websocket: false, via: TUNNEL };
    let response = f.serve(inbound, get("/")).await;
    f.plane.apply(&h1(echo("b").await.address)).unwrap();
    go.send(()).unwrap();
    let answer = read(response).await;
    assert_eq!((answer.text(), answer.cut.is_none()), ("halfhalf", true));
    tokio::time::timeout(PATIENCE, closed).await.expect("a pool of a removed endpoint keeps nothing").unwrap();
}

#[tokio::test]
async fn connections_to_endpoints_that_stay_are_kept_and_others_are_closed() {
    let (seen, closed) = tokio::sync::oneshot::channel();
    let seen = std::sync::Mutex::new(Some(seen));
    let backend = scripted(move |_, mut wire| {
        let seen = seen.lock().unwrap().take();
        async move {
            while wire.head().await.is_some() {
                wire.write(OK).await;
            }
            let _ = seen.unwrap().send(());
        }
    })
    .await;
    let f = plane(&h1(backend.address));
    for round in 0..3 {
        assert_eq!(f.send(get("/")).await.text(), "ok");
        tokio::task::yield_now().await;
        let mut config = h1(backend.address);
        config.options.allow_x_original_host = round % 2 == 0;
        f.plane.apply(&config).unwrap();
    }
    assert_eq!(backend.accepted(), 1);
    f.plane.apply(&RouteConfig::empty()).unwrap();
    tokio::time::timeout(PATIENCE, closed).await.expect("idle connections close with their endpoint").unwrap();
    assert_eq!(f.send(get("/")).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn versions_name_the_content_and_followers_hear_of_changes() {
    let f = unconfigured();
    let mut trailers = f.plane.needs_trailers();
    let version = f.plane.watch_version();
    assert_eq!(f.plane.version(), None);
    let first = f.plane.apply(&RouteConfig::empty()).unwrap().version;
    assert_eq!(first.len(), 64);
    assert_eq!(version.borrow().as_deref(), Some(&*first));
    assert_eq!(f.plane.apply(&RouteConfig::empty()).unwrap().version, first);
    assert!(!trailers.has_changed().unwrap());

    let mut grpc = config(vec![rule(0, "/", &[])], Vec::new());
    grpc.routes[0].kind = ir::RouteKind::Grpc;
    grpc.routes[0].object = ObjectRef::new(Kind::GrpcRoute, "shop", "web");
    grpc.routes[0].rules[0].matches = vec![ir::Match::Grpc(ir::GrpcMatch::default())];
    assert_ne!(f.plane.apply(&grpc).unwrap().version, first);
    assert!(trailers.has_changed().unwrap() && *trailers.borrow_and_update());

    let unreadable = RouteConfig { format: 99, ..RouteConfig::empty() };
    let before = f.plane.version();
    f.plane.apply(&unreadable).unwrap_err();
    assert_eq!(f.plane.version(), before);
    assert_eq!(f.metric("cftunnel_proxy_config_rejected_total"), 1);
}
