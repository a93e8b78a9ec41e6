//! An issuer's server of keys, as good or bad as a test wants it.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use tokio::sync::watch;

use super::authority::Authority;

/// What it answers.
#[derive(Clone)]
pub enum Mood {
    /// 200 with this text.
    Says(String),
    Status(u16),
    Redirects(String),
    /// Never answers.
    Hangs,
    /// Answers with this text once [`Issuer::release`] was called.
    Waits(String),
}

#[derive(Clone)]
struct Shared {
    mood: Arc<Mutex<Mood>>,
    asked: Arc<watch::Sender<usize>>,
    released: Arc<watch::Sender<bool>>,
}

impl Shared {
    fn with(mood: Mood) -> (Self, Router) {
        let shared = Self {
            mood: Arc::new(Mutex::new(mood)),
            asked: Arc::new(watch::Sender::new(0)),
            released: Arc::new(watch::Sender::new(false)),
        };
        let router = Router::new().route("/keys", get(answer)).with_state(shared.clone());
        (shared, router)
    }
}

/// A server on loopback; it ends with the test's runtime.
pub struct Issuer {
    pub url: String,
    shared: Shared,
}

impl Issuer {
    pub async fn start(mood: Mood) -> Self {
        let (shared, router) = Shared::with(mood);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, shared }
    }

    /// By TLS, with a certificate for `host`; its address is 127.0.0.1 whatever that is.
    pub async fn start_tls(authority: &Authority, host: &str, mood: Mood) -> Self {
        let (shared, router) = Shared::with(mood);
        let port = authority.serve(host, router).await;
        Self { url: format!("https://127.0.0.1:{port}/keys"), shared }
    }

    pub fn set(&self, mood: Mood) {
        *self.shared.mood.lock().unwrap() = mood;
    }

    /// How often it was asked.
    pub fn asked(&self) -> usize {
        *self.shared.asked.borrow()
    }

    /// Waits until it was asked so often.
    pub async fn asked_until(&self, times: usize) {
        self.shared.asked.subscribe().wait_for(|asked| *asked >= times).await.unwrap();
    }

    pub fn release(&self) {
        self.shared.released.send_replace(true);
    }
}

async fn answer(State(shared): State<Shared>) -> Response {
    let mood = shared.mood.lock().unwrap().clone();
    shared.asked.send_modify(|asked| *asked += 1);
    match mood {
        Mood::Says(text) => text.into_response(),
        Mood::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Mood::Redirects(to) => (StatusCode::FOUND, [(header::LOCATION, to)]).into_response(),
        Mood::Hangs => std::future::pending().await,
        Mood::Waits(text) => {
            shared.released.subscribe().wait_for(|released| *released).await.unwrap();
            text.into_response()
        }
    }
}
