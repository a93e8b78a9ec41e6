//! A Postgres of its own that speaks TLS: only the host that the authority vouches for is spoken to.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use usage_control::Control;
use usage_devstack::Postgres;
use usage_service::config::DatabaseConfig;
use usage_service::error_chain;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn written(dir: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Turns TLS on, with a certificate of `localhost`. The key has to belong to whoever runs the server.
fn speak_tls(server: &mut Postgres, authority: &Authority) {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["localhost".to_string()]).unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    let data = server.query("postgres", "SHOW data_directory").unwrap()[0][0].clone().unwrap();
    let (user, group) = server.owner().unwrap();
    for (name, text) in [("server.crt", certificate.pem()), ("server.key", key.serialize_pem())] {
        let path = written(Path::new(&data), name, &text);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(user), Some(group)).unwrap();
    }
    server.query("postgres", "ALTER SYSTEM SET ssl = on").unwrap();
    server.restart().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_has_to_prove_by_tls_that_it_is_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Postgres::start(dir.path()).unwrap();
    let (authority, other) = (authority("ours"), authority("theirs"));
    let ca = written(dir.path(), "ca.pem", &authority.pem());
    let other_ca = written(dir.path(), "other-ca.pem", &other.pem());
    let verified = |host: &str, ca: &Path| DatabaseConfig {
        ca_file: Some(ca.into()),
        ..DatabaseConfig::new(format!("postgres://usage:hunter2@{host}:{}/postgres", server.port()))
    };
    let (right, wrong_host, wrong_ca) =
        (verified("localhost", &ca), verified("127.0.0.1", &ca), verified("localhost", &other_ca));

    let error = error_chain(&Control::connect(&right).await.unwrap_err());
    assert!(error.contains("does not support TLS"), "plaintext is no way out: {error}");

    speak_tls(&mut server, &authority);
    let control = Control::connect(&right).await.unwrap();
    let encrypted: bool = sqlx::query_scalar("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        .fetch_one(control.pool())
        .await
        .unwrap();
    assert!(encrypted);
    for (database, part) in [(wrong_host, "not valid for name"), (wrong_ca, "invalid peer certificate")] {
        let error = error_chain(&Control::connect(&database).await.unwrap_err());
        assert!(error.contains(part) && !error.contains("hunter2"), "{error}");
    }
}
