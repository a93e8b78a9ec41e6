//! A decision point behind TLS.

use super::*;
use crate::policy::PolicyConfig;
use crate::tests::authority::Authority;

async fn permits() -> &'static str {
    r#"{"decision": true}"#
}

/// Permits everything, with a certificate for `host`; gives its port.
async fn serve(authority: &Authority, host: &str) -> u16 {
    authority.serve(host, Router::new().fallback(permits)).await
}

async fn ask_over_tls(port: u16, files: TlsFiles) -> Result<Decision, PolicyError> {
    let config = AuthZenConfig { files, ..config(&format!("https://127.0.0.1:{port}")) };
    AuthZen::new(&config).unwrap().decide(&ask(&caller())).await
}

#[tokio::test]
async fn a_point_is_trusted_by_the_authorities_of_the_file_and_no_others() {
    let (authority, other) = (Authority::new(), Authority::new());
    let port = serve(&authority, "127.0.0.1").await;
    let decision = ask_over_tls(port, authority.files()).await.unwrap();
    assert_eq!(decision, Decision::Permit(Constraints::default()));
    for files in [other.files(), TlsFiles::default()] {
        let error = ask_over_tls(port, files).await.unwrap_err();
        assert!(matches!(error, PolicyError::Unavailable(_)), "{error:?}");
        assert!(usage_service::error_chain(&error).contains("certificate"), "{error:?}");
    }
}

/// As a process is told of the authority.
#[tokio::test]
async fn the_setting_ca_file_is_what_a_point_is_trusted_by() {
    let authority = Authority::new();
    let port = serve(&authority, "127.0.0.1").await;
    let told = |ca_file| PolicyConfig {
        url: Some(format!("https://127.0.0.1:{port}")),
        ca_file,
        timeout: Duration::from_secs(30),
        ..PolicyConfig::default()
    };
    let point = told(Some(authority.path())).decision_point().unwrap();
    assert_eq!(point.decide(&ask(&caller())).await.unwrap(), Decision::Permit(Constraints::default()));
    point.ready().await.unwrap();
    let untrusting = told(None).decision_point().unwrap();
    assert!(untrusting.decide(&ask(&caller())).await.is_err());
    assert!(untrusting.ready().await.is_err());
}

#[tokio::test]
async fn a_certificate_for_another_host_is_no_permission() {
    let authority = Authority::new();
    let port = serve(&authority, "pdp.example").await;
    let error = ask_over_tls(port, authority.files()).await.unwrap_err();
    assert!(matches!(error, PolicyError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn an_answer_in_plain_text_where_tls_belongs_is_no_permission() {
    let fake = Fake::answering(200, r#"{"decision": true}"#).await;
    let port: u16 = fake.url.rsplit(':').next().unwrap().parse().unwrap();
    assert!(ask_over_tls(port, TlsFiles::default()).await.is_err());
    assert_eq!(fake.asked(), 0);
}
