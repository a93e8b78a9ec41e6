use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use super::*;

const SOON: Duration = Duration::from_secs(30);
/// Long enough for what is on its way on loopback to arrive; nothing must arrive, so a slow machine can't fail a test.
const A_MOMENT: Duration = Duration::from_millis(200);

struct Ends {
    proxy: Proxy,
    client: TcpStream,
    server: TcpStream,
    listener: TcpListener,
}

async fn ends() -> Ends {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
    let client = TcpStream::connect(proxy.address()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    Ends { proxy, client, server, listener }
}

async fn arrives(to: &mut TcpStream, expected: &[u8]) {
    let mut buffer = vec![0; expected.len()];
    timeout(SOON, to.read_exact(&mut buffer)).await.expect("it arrives").unwrap();
    assert_eq!(buffer, expected);
}

async fn nothing_arrives(to: &mut TcpStream) {
    let mut buffer = [0; 16];
    let read = timeout(A_MOMENT, to.read(&mut buffer)).await;
    assert!(read.is_err(), "{read:?} of {buffer:?} arrived");
}

async fn ends_in_order(to: &mut TcpStream) {
    let mut rest = Vec::new();
    timeout(SOON, to.read_to_end(&mut rest)).await.expect("it ends").expect("and is not reset");
}

#[tokio::test]
async fn a_good_link_passes_both_directions_and_the_end() {
    let Ends { proxy: _proxy, mut client, mut server, .. } = ends().await;
    client.write_all(b"ask").await.unwrap();
    arrives(&mut server, b"ask").await;
    server.write_all(b"answer").await.unwrap();
    arrives(&mut client, b"answer").await;
    client.shutdown().await.unwrap();
    ends_in_order(&mut server).await;
    server.write_all(b"last").await.unwrap();
    arrives(&mut client, b"last").await;
}

#[tokio::test]
async fn a_cut_link_passes_nothing_until_it_is_healed() {
    let Ends { proxy, mut client, mut server, .. } = ends().await;
    proxy.set(Bad::Cut);
    client.write_all(b"ask").await.unwrap();
    server.write_all(b"push").await.unwrap();
    nothing_arrives(&mut server).await;
    nothing_arrives(&mut client).await;
    proxy.heal(After::Late);
    arrives(&mut server, b"ask").await;
    arrives(&mut client, b"push").await;
}

#[tokio::test]
async fn a_link_can_be_broken_in_one_direction() {
    let Ends { proxy, mut client, mut server, .. } = ends().await;
    proxy.set(Bad::NoAnswers);
    client.write_all(b"ask").await.unwrap();
    arrives(&mut server, b"ask").await;
    server.write_all(b"answer").await.unwrap();
    nothing_arrives(&mut client).await;
    proxy.set(Bad::NoRequests);
    arrives(&mut client, b"answer").await;
    client.write_all(b"more").await.unwrap();
    nothing_arrives(&mut server).await;
}

#[tokio::test]
async fn what_is_lost_never_arrives_and_nobody_is_reset() {
    let Ends { proxy, mut client, mut server, listener } = ends().await;
    proxy.set(Bad::Cut);
    client.write_all(b"lost").await.unwrap();
    server.write_all(b"lost too").await.unwrap();
    nothing_arrives(&mut server).await;
    proxy.heal(After::Lost);
    let mut rest = Vec::new();
    timeout(SOON, server.read_to_end(&mut rest)).await.expect("it ends").expect("and is not reset");
    assert_eq!(rest, b"");
    // What comes afterwards on the old connection is lost too; a new one works.
    client.write_all(b"late").await.unwrap();
    ends_in_order(&mut client).await;
    let mut again = TcpStream::connect(proxy.address()).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    again.write_all(b"again").await.unwrap();
    arrives(&mut server, b"again").await;
}

#[tokio::test]
async fn the_end_of_a_client_is_not_heard_over_a_cut_link() {
    let Ends { proxy, client, mut server, .. } = ends().await;
    proxy.set(Bad::Cut);
    drop(client);
    nothing_arrives(&mut server).await;
    proxy.heal(After::Late);
    ends_in_order(&mut server).await;
}

#[tokio::test]
async fn a_slow_link_passes_everything_in_order() {
    let Ends { proxy, mut client, mut server, .. } = ends().await;
    proxy.set(Bad::Slow(Duration::from_millis(1)));
    let sent: Vec<u8> = (0..20_000_u32).flat_map(u32::to_le_bytes).collect();
    let expected = sent.clone();
    let writing = tokio::spawn(async move { client.write_all(&sent).await });
    arrives(&mut server, &expected).await;
    writing.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_is_away_ends_the_connection() {
    let away = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = Proxy::start(away).await.unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    let read = timeout(SOON, client.read(&mut [0; 8])).await.expect("it ends");
    assert!(!read.is_ok_and(|length| length > 0));
}
