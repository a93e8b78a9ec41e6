//! Callers that mean harm, against a real ClickHouse and Postgres: injection through every parameter, headers that claim to be
//! somebody else, ids and cursors of another tenant.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use usage_access::Scopes;
use usage_query_api::params::is_name;
use usage_query_api::query::PARAMETERS as AGGREGATED;
use usage_query_api::raw_query::PARAMETERS as RAW;
use usage_query_api::server::Server;
use usage_service::CancellationToken;
use usage_storage::StoredRecord;
use uuid::Uuid;

use crate::memory::record;
use crate::real::Databases;
use crate::support::{Harness, bearer};

const RANGE: &str = "from=2025-03-25T00:00:00Z&to=2025-05-04T00:00:00Z";
/// Only the victim's records have it, in every text that a record has.
const MARK: &str = "victims";
/// What each of them counts; no trace id looks like it.
const VALUE: &str = "70707071";

/// What has broken others, or looks like something else.
fn payloads() -> Vec<String> {
    let texts = [
        "x') OR 1=1 --",
        "' OR '1'='1",
        "tokens' UNION ALL SELECT * FROM usage_records --",
        "\\' OR 1=1 --",
        "\\",
        "{t0:String}",
        "{{tenant}}",
        "param_t0",
        "tokens; DROP TABLE usage_records",
        "tokens\0",
        "\0",
        "%00",
        "%2527%20OR%201%3D1",
        "tokens\r\nX-Tenant-Id: 1",
        "tokens\t",
        " tokens",
        "*",
        "%",
        "_",
        "../../../etc/passwd",
        "${jndi:ldap://x}",
        "<script>",
        "=1+1",
        "[]",
        "{\"$ne\":null}",
        "null",
        "NaN",
        "-1",
        "1e309",
        "99999999999999999999999999",
        // Cyrillic letters, full width ones, a zero-width space, another direction, a combining accent, two halves of one character.
        "tоkens",
        "ｔｏｋｅｎｓ",
        "tok\u{200b}ens",
        "\u{202e}snekot",
        "tokens\u{301}",
        "TOKENS",
        "’ OR 1=1",
        "＇ OR 1=1",
        "😀",
    ];
    let long = ["a".repeat(129), "a".repeat(20_000), "é".repeat(10_000), "'".repeat(10_000)];
    texts.into_iter().map(str::to_owned).chain(long).collect()
}

/// Every byte as `%XX`, so that nothing on the way judges it before the API does.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

struct World {
    databases: Databases,
    api: Harness,
    victim: Uuid,
    victims: Vec<StoredRecord>,
}

/// Two tenants with records in real storage; the API is asked by one of them.
async fn world() -> World {
    let databases = Databases::create().await;
    let memory = Harness::new();
    let victim = Uuid::new_v4();
    let own: Vec<_> = (0..20).map(|at| record(memory.tenant, "tokens", "1", &time(at))).collect();
    let victims: Vec<_> = (0..20)
        .map(|at| StoredRecord {
            source: MARK.to_owned(),
            subject_id: Some(victim),
            subject_type: Some(MARK.to_owned()),
            resource_type: Some(MARK.to_owned()),
            metadata: Some(format!("{{\"of\":\"{MARK}\"}}")),
            ..record(victim, "tokens", VALUE, &time(at))
        })
        .collect();
    databases.write(1, &own, true).await;
    databases.write(2, &victims, true).await;
    let api = databases.api(&memory, 7).await;
    World { databases, api, victim, victims }
}

fn time(at: usize) -> String {
    format!("2025-04-{:02}T12:00:00Z", at + 1)
}

/// What both tenants see: unchanged as long as nobody did harm.
async fn seen(world: &World) -> Vec<String> {
    let victim = Harness { tenant: world.victim, ..world.api.stranger() };
    let mut seen = Vec::new();
    for api in [&world.api, &victim] {
        for path in
            [format!("aggregated?{RANGE}&group_by=metric"), format!("raw?{RANGE}"), "types".to_owned()]
        {
            let answer = api.get(&format!("/v1/usage/{path}")).await;
            assert_eq!(answer.status.as_u16(), 200, "{}", answer.text);
            seen.push(answer.text);
        }
    }
    assert!(seen[0].contains("\"20\"") && seen[3].contains("\"1414141420\""), "{seen:?}");
    seen
}

#[tokio::test]
async fn problem_34_whatever_is_sent_in_whatever_parameter_is_a_value() {
    let world = world().await;
    let before = seen(&world).await;
    let good = |name: &str| match name {
        "from" => "2025-03-25T00:00:00Z",
        "to" => "2025-05-04T00:00:00Z",
        _ => "tokens",
    };
    let mut asked = 0;
    for payload in payloads() {
        let mut paths: Vec<String> = ["records", "types", "allowances"]
            .into_iter()
            .map(|path| format!("{path}/{}", encoded(&payload)))
            .collect();
        for (path, parameters) in [("aggregated", AGGREGATED), ("raw", RAW)] {
            for name in parameters {
                let others = ["from", "to", "metric"].into_iter().filter(|other| other != name);
                let others: Vec<String> = others.map(|other| format!("{other}={}", good(other))).collect();
                paths.push(format!("{path}?{}&{name}={}", others.join("&"), encoded(&payload)));
            }
            // As the name of a parameter.
            paths.push(format!("{path}?{RANGE}&metric=tokens&{}=1", encoded(&payload)));
        }
        for path in paths {
            for accept in ["application/json", "text/csv"] {
                let answer = world.api.get_as(&format!("/v1/usage/{path}"), accept).await;
                let shown: String = path.chars().take(300).collect();
                let status = answer.status.as_u16();
                // 406: the paths that have no CSV.
                let judged = matches!(status, 400 | 404) || (status == 406 && accept == "text/csv");
                // What is a name finds nothing: an empty list, or the header alone.
                let nothing = answer.text.contains("\"data\":[]") || answer.text.lines().count() == 1;
                let judged = judged || (status == 200 && is_name(&payload) && nothing);
                assert!(judged, "{shown}: {status} {}", answer.text);
                assert!(
                    !answer.text.contains(MARK) && !answer.text.contains(VALUE),
                    "{shown}: {}",
                    answer.text
                );
                assert!(answer.text.len() < 20_000, "{shown}: {} bytes", answer.text.len());
                asked += 1;
            }
        }
    }
    assert!(asked > 2_000, "{asked}");
    // What is a good value in form, and only finds nothing.
    for filter in [
        "source=nobody",
        "subject_type=or",
        "resource_type=select",
        &format!("subject_id={}", Uuid::new_v4()),
    ] {
        let rows = world.api.rows(&format!("/v1/usage/aggregated?{RANGE}&metric=tokens&{filter}")).await;
        assert_eq!(rows.len(), 0, "{filter}");
    }
    assert_eq!(seen(&world).await, before);
    world.databases.drop().await;
}

#[tokio::test]
async fn problem_36_ids_filters_and_cursors_of_another_tenant_are_of_no_use() {
    let world = world().await;
    let (api, victim) = (&world.api, Harness { tenant: world.victim, ..world.api.stranger() });
    let nobodys = api.get(&format!("/v1/usage/records/{}", Uuid::new_v4())).await;
    for record in &world.victims {
        let answer = api.get(&format!("/v1/usage/records/{}", record.record_id)).await;
        answer.problem(404, "not-found");
        assert_eq!(answer.detail(), nobodys.detail(), "as if it were not there");
        assert_eq!(victim.get(&format!("/v1/usage/records/{}", record.record_id)).await.status.as_u16(), 200);
    }
    for filter in [
        format!("source={MARK}"),
        format!("subject_id={}", world.victim),
        format!("subject_type={MARK}"),
        format!("resource_type={MARK}"),
        format!("source={MARK}&source=gateway&subject_type={MARK}"),
    ] {
        for path in ["aggregated", "raw"] {
            let path = format!("/v1/usage/{path}?{RANGE}&metric=tokens&{filter}");
            assert_eq!(api.rows(&path).await.len(), 0, "{path}");
            assert_ne!(victim.rows(&path).await.len(), 0, "{path}");
        }
    }
    for path in [
        format!("/v1/usage/aggregated?{RANGE}&metric=tokens&window_size=P1D"),
        format!("/v1/usage/raw?{RANGE}&limit=3"),
    ] {
        let cursor = victim.get(&path).await.json()["next_cursor"].as_str().unwrap().to_owned();
        assert_eq!(victim.get(&format!("{path}&cursor={cursor}")).await.status.as_u16(), 200);
        for accept in ["application/json", "text/csv"] {
            let path = if accept == "text/csv" { path.replace("&limit=3", "") } else { path.clone() };
            let answer = api.get_as(&format!("{path}&cursor={cursor}"), accept).await;
            assert_eq!(answer.problem(400, "invalid-cursor"), ["cursor:cursor_of_another_query"]);
        }
    }
    for (path, accept) in [
        (format!("raw?{RANGE}&status=all"), "text/csv"),
        (format!("raw?{RANGE}&status=all"), "application/x-ndjson"),
        (format!("aggregated?{RANGE}&group_by=metric,source,subject,resource&fill=zero"), "text/csv"),
        ("metadata/watermarks".to_owned(), "application/json"),
    ] {
        let answer = api.get_as(&format!("/v1/usage/{path}"), accept).await;
        assert_eq!((answer.status.as_u16(), answer.broken), (200, false));
        assert!(answer.text.contains("gateway") && !answer.text.contains(MARK), "{}", answer.text);
    }
    world.databases.drop().await;
}

/// Sends bytes as they are; what comes back until the other side closes, or `None` if it never answered.
async fn exchange(address: SocketAddr, request: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The other side may cut a connection that it does not understand.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.get(9..12)?.parse().ok()?, body.to_owned()))
}

#[tokio::test]
async fn problem_36_nothing_but_the_token_says_who_asks() {
    let world = world().await;
    let server = Server::bind("127.0.0.1:0", None, world.api.router.clone()).await.unwrap();
    let address = server.address().unwrap();
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(server.run(shutdown.clone()));

    let target = format!("/v1/usage/raw?{RANGE}");
    let own = format!("Authorization: {}", bearer(world.api.tenant, Scopes::all()));
    let theirs = bearer(world.victim, Scopes::all());
    let (victim, host) = (world.victim, format!("Host: {address}"));
    let plain = |target: &str, lines: &[&str]| {
        format!("GET {target} HTTP/1.1\r\nConnection: close\r\n{}\r\n\r\n", lines.join("\r\n"))
    };
    let honest = exchange(address, &plain(&target, &[&host, &own])).await.expect("an answer");
    assert!(honest.0 == 200 && honest.1.contains(&world.api.tenant.to_string()));

    // Nobody listens to these: the answer is the honest one, byte for byte.
    let claims = [
        format!("X-Tenant-Id: {victim}"),
        format!("Tenant-Id: {victim}"),
        format!("X-Usage-Tenant: {victim}"),
        format!("X-Forwarded-User: {victim}"),
        format!("X-Auth-Request-User: {victim}"),
        format!("X-Remote-User: {victim}"),
        "X-Forwarded-For: 127.0.0.1".to_owned(),
        "X-Forwarded-Host: victim".to_owned(),
        "X-Forwarded-Proto: https".to_owned(),
        "X-Forwarded-Prefix: /v1/usage/types".to_owned(),
        format!("Forwarded: for=127.0.0.1;host=victim;by={victim}"),
        "X-Original-URL: /v1/usage/types".to_owned(),
        "X-Rewrite-URL: /v1/usage/types".to_owned(),
        "X-HTTP-Method-Override: POST".to_owned(),
        "X-Real-IP: 127.0.0.1".to_owned(),
        format!("Cookie: tenant_id={victim}; token={theirs}"),
        format!("Proxy-Authorization: {theirs}"),
        format!("X-Authorization: {theirs}"),
        format!("Authorization-: {theirs}"),
    ];
    for claim in &claims {
        let answer = exchange(address, &plain(&target, &[&host, &own, claim])).await;
        assert_eq!(answer.as_ref(), Some(&honest), "{claim}");
        let answer = exchange(address, &plain(&target, &[claim, &own, &host])).await;
        assert_eq!(answer.as_ref(), Some(&honest), "{claim}");
        let alone = exchange(address, &plain(&target, &[&host, claim])).await.expect("an answer");
        assert_eq!(alone.0, 401, "{claim}");
    }

    let token = theirs.trim_start_matches("Bearer ");
    // Two answers to who asks are a doubt, and a token has one place.
    let refused = [
        plain(&target, &[&host, &own, &format!("Authorization: {theirs}")]),
        plain(&target, &[&host, &format!("Authorization: {theirs}"), &own]),
        plain(&target, &[&host, &own, &own]),
        plain(&target, &[&host, &own, "authorization: Basic eDp5"]),
        plain(&target, &[&host, &format!("{own}, {theirs}")]),
        plain(&target, &[&host, &format!("{own} {token}")]),
        plain(&target, &[&host, &own.replace("Bearer", "Token")]),
        plain(&format!("{target}&access_token={token}"), &[&host]),
        plain(&format!("{target}&authorization=Bearer%20{token}"), &[&host]),
        plain(&format!("http://{victim}:{token}@{address}{target}"), &[&host]),
    ];
    for request in &refused {
        let answer = exchange(address, request).await.expect("an answer");
        assert_eq!(answer.0, 401, "{request}: {}", answer.1);
    }
    for parameter in
        [format!("access_token={token}"), format!("tenant_id={victim}"), format!("tenant={victim}")]
    {
        let answer = exchange(address, &plain(&format!("{target}&{parameter}"), &[&host, &own])).await;
        assert_eq!(answer.expect("an answer").0, 400, "{parameter}");
    }

    // Requests that two servers could read differently: the honest answer or a refusal, never another tenant's records.
    let post = |lines: &str, body: &str| {
        format!(
            "POST /v1/usage/types HTTP/1.1\r\n{host}\r\n{own}\r\nConnection: close\r\n{lines}\r\n\r\n{body}"
        )
    };
    let smuggled = format!("GET {target} HTTP/1.1\r\n{host}\r\nAuthorization: {theirs}\r\n\r\n");
    for request in [
        plain(&target, &[&host, "Host: victim", &own]),
        plain(&target, &[&own]),
        plain(&target, &[&host, &own.replace(": ", " : ")]),
        plain(&target, &[&host, "X-A: b", &format!(" {own}")]),
        plain(&target, &[&host, &own, &format!("X-A: b\nAuthorization: {theirs}")]),
        plain(&target, &[&host, &own, &format!("X-A: b\rAuthorization: {theirs}")]),
        plain(&target, &[&host, &format!("Authorization\0: {theirs}"), &own]),
        plain(&format!("/{target}"), &[&host, &own]),
        plain(&target.replace("/raw", "/types/../raw"), &[&host, &own]),
        plain(&target.replace("/raw", "/%2e%2e/usage/raw"), &[&host, &own]),
        plain(&target.replace("/raw", "/raw;x=1"), &[&host, &own]),
        plain(&target.replace("/raw", "/raw%00"), &[&host, &own]),
        plain(&target.replace("/raw", "/RAW"), &[&host, &own]),
        plain(&target.replace("/raw", "/raw\0"), &[&host, &own]),
        plain(&format!("http://victim{target}"), &[&host, &own]),
        post("Content-Length: 0\r\nTransfer-Encoding: chunked", &format!("0\r\n\r\n{smuggled}")),
        post("Content-Length: 6\r\nTransfer-Encoding: chunked", &format!("0\r\n\r\n{smuggled}")),
        post("Content-Length: 0\r\nContent-Length: 60", &smuggled),
        post("Transfer-Encoding: xchunked", &smuggled),
        post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", &format!("0\r\n\r\n{smuggled}")),
    ] {
        let Some((status, body)) = exchange(address, &request).await else { continue };
        assert!(
            (status, &body) == (honest.0, &honest.1) || (400..500).contains(&status),
            "{request}: {status} {body}"
        );
        assert!(!body.contains(MARK) && !body.contains(VALUE), "{request}: {body}");
    }
    shutdown.cancel();
    serving.await.unwrap().unwrap();
    world.databases.drop().await;
}
