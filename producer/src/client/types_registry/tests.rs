use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Mutex;

use usage_schemas::{Kind, Timestamp, TypeVersion};
use usage_service::transport::{AddressError, TlsFiles};

use super::*;

const NEVER: Duration = Duration::from_secs(1_000_000);

type Answer = Result<Option<Listed>, ()>;

/// What a list answers, in turn; the last one again and again.
#[derive(Clone)]
struct Script(Arc<Mutex<Course>>);

struct Course {
    /// The next one last.
    answers: Vec<Answer>,
    /// Those that came along.
    tags: Vec<Option<String>>,
}

impl Script {
    fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let mut answers: Vec<_> = answers.into_iter().collect();
        answers.reverse();
        Self(Arc::new(Mutex::new(Course { answers, tags: Vec::new() })))
    }

    fn asked(&self) -> usize {
        self.0.lock().unwrap().tags.len()
    }
}

#[async_trait]
impl TypesList for Script {
    async fn list(&self, etag: Option<&str>) -> Result<Option<Listed>, RegistryError> {
        let mut course = self.0.lock().unwrap();
        course.tags.push(etag.map(str::to_owned));
        let last = course.answers.len() == 1;
        let answer = if last { course.answers[0].clone() } else { course.answers.pop().unwrap() };
        answer.map_err(|()| RegistryError::Unavailable("away".into()))
    }
}

fn types(names: &[&str]) -> Answer {
    let version = TypeVersion {
        version: 1,
        valid_from: None,
        kind: Kind::Counter,
        unit: "1".into(),
        description: None,
        rules: Default::default(),
        created_at: Timestamp::from_micros(0),
    };
    let types = names.iter().map(|name| UsageType { name: (*name).into(), versions: vec![version.clone()] });
    Ok(Some(Listed { types: types.collect(), etag: Some(format!("\"{}\"", names.join(" "))) }))
}

fn registry(script: &Script, fresh: Duration, stale: Duration, pause: Duration) -> RememberedTypes {
    RememberedTypes::new(script.clone(), Freshness { fresh, stale, pause })
}

async fn has(registry: &RememberedTypes, name: &str) -> Option<bool> {
    registry.usage_type(name).await.ok().map(|found| found.is_some())
}

#[tokio::test]
async fn what_is_remembered_is_not_asked_for_again() {
    let script = Script::new([types(&["a", "b"])]);
    let registry = registry(&script, NEVER, NEVER, NEVER);
    registry.warm().await.unwrap();
    for name in ["a", "b", "a"] {
        assert_eq!(has(&registry, name).await, Some(true));
    }
    assert_eq!(script.asked(), 1);
}

#[tokio::test]
async fn an_unknown_name_is_asked_for_before_it_is_refused() {
    let script = Script::new([types(&["a"]), types(&["a", "b"])]);
    let registry = registry(&script, NEVER, NEVER, Duration::ZERO);
    assert_eq!(has(&registry, "a").await, Some(true));
    assert_eq!(has(&registry, "b").await, Some(true), "registered meanwhile");
    assert_eq!(has(&registry, "c").await, Some(false));
    assert_eq!(script.asked(), 3);
}

#[tokio::test]
async fn unknown_names_do_not_ask_at_every_call() {
    let script = Script::new([types(&["a"])]);
    let registry = registry(&script, NEVER, NEVER, NEVER);
    for at in 0..1_000 {
        assert_eq!(has(&registry, &format!("unknown{at}")).await, Some(false));
    }
    assert_eq!(script.asked(), 1);
}

#[tokio::test]
async fn without_anything_remembered_no_answer_is_an_error() {
    let script = Script::new([Err(()), types(&["a"])]);
    let cold = registry(&script, NEVER, NEVER, NEVER);
    assert_eq!(has(&cold, "a").await, None);
    // It is not asked at every call while it is away.
    for _ in 0..100 {
        assert_eq!(has(&cold, "a").await, None);
    }
    assert_eq!(script.asked(), 1);
    let script = Script::new([Err(()), types(&["a"])]);
    let cold = registry(&script, NEVER, NEVER, Duration::ZERO);
    assert_eq!((has(&cold, "a").await, has(&cold, "a").await), (None, Some(true)));
}

#[tokio::test]
async fn what_is_stale_serves_while_the_registry_is_away_and_what_is_too_old_does_not() {
    let script = Script::new([types(&["a"]), Err(())]);
    let stale = registry(&script, Duration::ZERO, NEVER, Duration::ZERO);
    stale.warm().await.unwrap();
    assert_eq!(has(&stale, "a").await, Some(true));
    // What is not remembered is not refused without an answer.
    assert_eq!(has(&stale, "b").await, None);
    let script = Script::new([types(&["a"]), Err(())]);
    let old = registry(&script, Duration::ZERO, Duration::ZERO, Duration::ZERO);
    old.warm().await.unwrap();
    assert_eq!(has(&old, "a").await, None);
}

#[tokio::test]
async fn what_is_not_fresh_is_read_again_beside() {
    let script = Script::new([types(&["a"]), types(&["a", "b"])]);
    let registry = registry(&script, Duration::ZERO, NEVER, Duration::ZERO);
    registry.warm().await.unwrap();
    assert_eq!(has(&registry, "a").await, Some(true));
    while script.asked() < 2 {
        tokio::task::yield_now().await;
    }
    // Whoever comes now waits for the one who asks, and finds what that one found.
    drop(registry.0.asking.lock().await);
    assert!(registry.0.snapshot.load_full().unwrap().types.contains_key("b"));
}

#[tokio::test]
async fn what_did_not_change_stays_as_it_was_made_ready() {
    let script = Script::new([types(&["a"]), Ok(None), types(&["a", "b"])]);
    let registry = registry(&script, NEVER, NEVER, Duration::ZERO);
    let first = registry.usage_type("a").await.unwrap().unwrap();
    for unknown in ["x", "y"] {
        assert_eq!(has(&registry, unknown).await, Some(false));
        assert!(Arc::ptr_eq(&first, &registry.usage_type("a").await.unwrap().unwrap()));
    }
    let tags = script.0.lock().unwrap().tags.clone();
    assert_eq!(tags, [None, Some("\"a\"".to_owned()), Some("\"a\"".to_owned())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_miss_at_once_ask_once() {
    let script = Script::new([types(&["a"])]);
    let registry = registry(&script, NEVER, NEVER, NEVER);
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let registry = registry.clone();
        running.spawn(async move { has(&registry, "a").await });
    }
    assert!(running.join_all().await.into_iter().all(|found| found == Some(true)));
    assert_eq!(script.asked(), 1);
}

#[test]
fn a_token_never_goes_in_the_clear_to_another_machine() {
    let token: TokenSource = Arc::new(|| "t".into());
    let made = |address: &str, allowed| {
        QueryApi::new(address, token.clone(), &TlsFiles::default(), allowed).map(drop)
    };
    for good in
        ["http://127.0.0.1:8080", "http://localhost", "http://[::1]:80/", "https://usage.example.com/base/"]
    {
        made(good, false).unwrap();
    }
    for bad in ["http://usage.example.com", "http://10.0.0.1", "http://localhost.example.com"] {
        assert!(
            matches!(made(bad, false), Err(HttpRegistryError::Address(AddressError::Plaintext { .. }))),
            "{bad}"
        );
        made(bad, true).unwrap();
    }
    for bad in ["", "usage.example.com", "ftp://127.0.0.1", "unix:/run/x"] {
        assert!(matches!(made(bad, true), Err(HttpRegistryError::Address(_))), "{bad}");
    }
}

/// Answers requests in turn, each on a connection of its own, and gives back what was asked.
fn serve(answers: Vec<String>) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/base", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let answer = |answer: String| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut buffer = [0; 1_024];
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                let read = stream.read(&mut buffer).unwrap();
                assert!(read > 0, "a request ends");
                request.extend_from_slice(&buffer[..read]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(request).unwrap()
        };
        answers.into_iter().map(answer).collect()
    });
    (address, served)
}

fn answer(status: &str, more: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\n{more}Content-Length: {}\r\n\r\n{body}", body.len())
}

/// The body is as the query-api's own test expects it of the API (`tests/http/types.rs`).
const LIST: &str = r#"{"data":[{"name":"gpu.seconds","version":2,"valid_from":"2027-01-01T00:00:00.000000Z","kind":"counter","unit":"second","description":null,"rules":{"max":"86400"},"created_at":"2026-01-01T00:00:00.000000Z","versions":[{"version":2,"valid_from":"2027-01-01T00:00:00.000000Z","kind":"counter","unit":"second","description":null,"rules":{"max":"86400"},"created_at":"2026-01-01T00:00:00.000000Z"},{"version":1,"valid_from":null,"kind":"counter","unit":"second","description":null,"rules":{},"created_at":"2026-01-01T00:00:00.000000Z"}]}]}"#;

#[tokio::test]
async fn the_query_api_is_asked_with_token_and_tag() {
    let (address, served) = serve(vec![
        answer("200 OK", "ETag: \"one\"\r\n", LIST),
        answer("304 Not Modified", "ETag: \"one\"\r\n", ""),
    ]);
    let api = QueryApi::new(&address, Arc::new(|| "the-token".into()), &TlsFiles::default(), false).unwrap();
    let registry = RememberedTypes::new(api, Freshness { pause: Duration::ZERO, ..Freshness::default() });
    let found = registry.usage_type("gpu.seconds").await.unwrap().unwrap();
    assert_eq!(found.usage_type().newest().version, 2);
    assert_eq!(found.usage_type().versions.len(), 2);
    assert!(registry.usage_type("gpu.hours").await.unwrap().is_none());
    let requests = served.join().unwrap();
    assert!(requests[0].starts_with("GET /base/v1/usage/types HTTP/1.1\r\n"), "{}", requests[0]);
    for request in &requests {
        assert!(request.to_lowercase().contains("authorization: bearer the-token\r\n"), "{request}");
    }
    assert!(!requests[0].to_lowercase().contains("if-none-match"));
    assert!(requests[1].to_lowercase().contains("if-none-match: \"one\"\r\n"), "{}", requests[1]);
}

#[tokio::test]
async fn an_answer_that_is_none_is_an_error() {
    let elsewhere = "Location: http://127.0.0.1:1/\r\n";
    for (given, passes) in [
        (answer("503 Service Unavailable", "", ""), true),
        (answer("401 Unauthorized", "", ""), true),
        (answer("429 Too Many Requests", "", ""), true),
        (answer("403 Forbidden", "", ""), false),
        (answer("404 Not Found", "", ""), false),
        (answer("302 Found", elsewhere, ""), false),
        (answer("200 OK", "", "{}"), false),
        (answer("200 OK", "", r#"{"data":[{"name":"a"}]}"#), false),
        // A rule of a newer program.
        (answer("200 OK", "", &LIST.replace(r#""rules":{}"#, r#""rules":{"most":"1"}"#)), false),
        // Half an answer.
        (answer("200 OK", "", LIST).split_at(400).0.to_owned(), true),
    ] {
        let (address, served) = serve(vec![given.clone()]);
        let api =
            QueryApi::new(&address, Arc::new(|| "the-token".into()), &TlsFiles::default(), false).unwrap();
        let error = RememberedTypes::new(api, Freshness::default()).warm().await.unwrap_err();
        assert_eq!(matches!(error, RegistryError::Unavailable(_)), passes, "{given}: {error:?}");
        assert!(!format!("{error:?} {}", usage_service::error_chain(&error)).contains("the-token"));
        served.join().unwrap();
    }
}
