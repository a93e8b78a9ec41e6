//! The example app as a process: spending and work under `kill -9`, and what its callers see.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use sqlx::PgPool;

use crate::support::{WITHIN, number, run_on, until, with_database};

struct App {
    process: Child,
    address: String,
}

impl App {
    /// Runs on the test's database; the environment has room for `mails` in a month.
    fn start(pool: &PgPool, mails: u32, calls_per_second: u32) -> Self {
        let program = std::env::current_exe().unwrap();
        let program: PathBuf = program.ancestors().nth(2).unwrap().join("examples/mail");
        assert!(
            program.exists(),
            "the example is not built: run `cargo build -p usage-limits --example mail`"
        );
        let options = pool.connect_options();
        let url = format!(
            "postgres://usage:usage@{}:{}/{}?application_name=mail",
            options.get_host(),
            options.get_port(),
            options.get_database().unwrap()
        );
        let mut process = Command::new(program)
            .env("DATABASE_URL", url)
            .env("LISTEN", "127.0.0.1:0")
            .env("MAILS_PER_MONTH", mails.to_string())
            .env("CALLS_PER_SECOND", calls_per_second.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect("the app listens").to_owned();
        Self { process, address }
    }

    fn kill9(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn post(&self, account: &str) -> std::io::Result<Answer> {
        exchange(&self.address, &format!("POST /accounts/{account}/mails"))
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Answer {
    status: u16,
    head: String,
    body: Value,
}

fn exchange(address: &str, line: &str) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(WITHIN))?;
    let request = format!("{line} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let cut = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(cut)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(cut)?;
    Ok(Answer { status, head: head.to_lowercase(), body: serde_json::from_str(body).unwrap_or_default() })
}

const SESSIONS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mail' AND datname = current_database()";
const USED: &str = "SELECT COALESCE(sum(used), 0)::bigint FROM mail_usage";
const MAILS: &str = "SELECT count(*) FROM mails";

#[tokio::test(flavor = "multi_thread")]
async fn problem_111_killed_between_spending_and_commit_nothing_is_spent() {
    with_database(|pool| async move {
        let mut app = App::start(&pool, 3, 1_000);
        // The work waits for a lock after the spending.
        let mut holder = pool.begin().await.unwrap();
        sqlx::raw_sql("LOCK TABLE mails IN SHARE MODE").execute(&mut *holder).await.unwrap();
        let address = app.address.clone();
        let caller = std::thread::spawn(move || exchange(&address, "POST /accounts/a/mails"));
        let waiting = format!("{SESSIONS} AND wait_event_type = 'Lock' AND query LIKE 'INSERT INTO mails %'");
        until(&pool, &waiting, 1).await;
        app.kill9();
        assert!(caller.join().unwrap().is_err());
        holder.rollback().await.unwrap();
        until(&pool, SESSIONS, 0).await;
        assert_eq!((number(&pool, USED).await, number(&pool, MAILS).await), (0, 0));

        let app = App::start(&pool, 3, 1_000);
        assert_eq!(app.post("a").unwrap().status, 201);
        assert_eq!((number(&pool, USED).await, number(&pool, MAILS).await), (1, 1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_under_load_the_count_is_that_of_the_mails() {
    with_database(|pool| async move {
        let mut sent = 0;
        for round in 0..3 {
            let mut app = App::start(&pool, 1_000_000, 1_000_000);
            let (tell, answered) = std::sync::mpsc::channel();
            let callers: Vec<_> = (0..8)
                .map(|_| {
                    let (address, tell) = (app.address.clone(), tell.clone());
                    std::thread::spawn(move || {
                        while exchange(&address, "POST /accounts/a/mails")
                            .is_ok_and(|answer| answer.status == 201)
                        {
                            let _ = tell.send(());
                        }
                    })
                })
                .collect();
            drop(tell);
            let mut promised = 0;
            for _ in 0..20 + round {
                answered.recv_timeout(WITHIN).expect("the app answers");
                promised += 1;
            }
            app.kill9();
            for caller in callers {
                caller.join().unwrap();
            }
            promised += answered.iter().count();
            until(&pool, SESSIONS, 0).await;
            let mails = number(&pool, MAILS).await;
            assert_eq!(number(&pool, USED).await, mails);
            assert!(mails >= sent + i64::try_from(promised).unwrap(), "an answered mail is gone");
            sent = mails;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_are_told_what_is_exhausted_and_when_to_come_back() {
    with_database(|pool| async move {
        let app = App::start(&pool, 2, 1_000);
        for remaining in [1, 0] {
            let sent = app.post("a").unwrap();
            assert_eq!((sent.status, &sent.body["remaining"]), (201, &remaining.into()));
            assert!(sent.head.contains("ratelimit-policy: \"mail.call\";q=1000;w=1"), "{}", sent.head);
            assert!(sent.head.contains("ratelimit: \"mail.call\";r="), "{}", sent.head);
        }
        let refused = app.post("a").unwrap();
        assert_eq!((refused.status, &refused.body["type"]), (429, &"usage/allowance-exhausted".into()));
        assert_eq!((&refused.body["used"], &refused.body["limit"]), (&2.into(), &2.into()));
        assert!(refused.head.contains("retry-after: "), "{}", refused.head);
        let usage = exchange(&app.address, "GET /accounts/a/usage").unwrap();
        assert_eq!(usage.body["months"].as_array().unwrap().len(), 12);
        assert_eq!(usage.body["months"][0]["used"], 2);
        run_on(&pool, "DROP TABLE mail_usage").await;
        assert_eq!(app.post("a").unwrap().status, 500);
    })
    .await;
}
