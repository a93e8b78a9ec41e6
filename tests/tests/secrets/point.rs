//! A policy decision point of the test's own (AuthZEN 1.0) that answers only who has its token.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::{Json, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::post;
use serde_json::{Value, json};
use uuid::Uuid;

/// A server on loopback; it ends with the test's runtime.
pub struct Point {
    pub url: String,
    shared: Shared,
}

#[derive(Clone)]
struct Shared {
    authorization: Arc<str>,
    /// Whose usage nobody may emit.
    denied: Uuid,
    answered: Arc<AtomicUsize>,
    turned_away: Arc<AtomicUsize>,
}

impl Point {
    pub async fn start(token: &str, denied: Uuid) -> anyhow::Result<Self> {
        let shared = Shared {
            authorization: format!("Bearer {token}").into(),
            denied,
            answered: Arc::default(),
            turned_away: Arc::default(),
        };
        let router = Router::new().route("/access/v1/evaluation", post(evaluate)).with_state(shared.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { url, shared })
    }

    /// How many questions came with the token.
    pub fn answered(&self) -> usize {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// How many came without.
    pub fn turned_away(&self) -> usize {
        self.shared.turned_away.load(Ordering::Relaxed)
    }
}

async fn evaluate(
    State(shared): State<Shared>,
    headers: HeaderMap,
    Json(question): Json<Value>,
) -> (StatusCode, Json<Value>) {
    let sent = headers.get(header::AUTHORIZATION).map(|value| String::from_utf8_lossy(value.as_bytes()));
    if sent.as_deref() != Some(&*shared.authorization) {
        shared.turned_away.fetch_add(1, Ordering::Relaxed);
        // As talkative as a server can be.
        let said = json!({"error": format!("{sent:?} is not {}", shared.authorization), "asked": question});
        return (StatusCode::UNAUTHORIZED, Json(said));
    }
    shared.answered.fetch_add(1, Ordering::Relaxed);
    let decision = question["resource"]["id"] != shared.denied.to_string();
    (StatusCode::OK, Json(json!({"decision": decision})))
}
