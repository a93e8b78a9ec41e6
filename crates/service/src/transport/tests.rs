use std::path::Path;

use proptest::prelude::*;

use super::*;

use Transport::{Loopback, Plaintext, Unverified, Verified};

#[test]
fn loopback_is_what_is_written_as_loopback() {
    for host in
        ["localhost", "LocalHost", "127.0.0.1", "127.255.255.254", "127.1.2.3", "::1", "0:0:0:0:0:0:0:1"]
    {
        assert!(is_loopback(host), "{host}");
    }
    for host in [
        "",
        "0.0.0.0",
        "::",
        "128.0.0.1",
        "126.255.255.255",
        "10.0.0.1",
        "localhost.",
        "localhost.evil.example",
        "evil.localhost",
        "mylocalhost",
        "127.0.0.1.evil.example",
        "127.0.0.1.nip.io",
        "127.1",
        "127.0.0.01",
        "0177.0.0.1",
        "0x7f.0.0.1",
        "0x7f000001",
        "2130706433",
        "::ffff:127.0.0.1",
        "::ffff:7f00:1",
        "::127.0.0.1",
        "::2",
        "fe80::1",
        "[::1]",
        "127.0.0.1:80",
        " 127.0.0.1",
        "127.0.0.1\0",
        "１２７.０.０.１",
        "ｌocalhost",
        "ip6-localhost",
    ] {
        assert!(!is_loopback(host), "{host}");
    }
}

#[test]
fn http_in_plaintext_is_for_loopback() {
    for (address, transport) in [
        ("https://clickhouse.example:8443", Verified),
        ("HTTPS://clickhouse.example/path/", Verified),
        ("https://127.0.0.1:8443", Verified),
        ("http://127.0.0.1:8123", Loopback),
        ("http://localhost", Loopback),
        ("http://LOCALHOST:1/", Loopback),
        ("http://[::1]:8123/x", Loopback),
        ("http://clickhouse:8123", Plaintext),
        ("http://0.0.0.0:8123", Plaintext),
        ("http://[::]:8123", Plaintext),
        ("http://10.0.0.1", Plaintext),
        ("http://[::ffff:7f00:1]:8123", Plaintext),
        ("http://localhost.evil.example", Plaintext),
        ("http://localhost.", Plaintext),
        ("http://127.0.0.1.nip.io", Plaintext),
        ("http://evil.example/127.0.0.1", Plaintext),
        ("http://evil.example/@127.0.0.1", Plaintext),
    ] {
        assert_eq!(http(address), Ok(transport), "{address}");
    }
}

#[test]
fn http_addresses_with_tricks_are_refused() {
    for (address, error) in [
        ("http://127.0.0.1@evil.example", AddressError::Credentials),
        ("http://127.0.0.1:8123@evil.example", AddressError::Credentials),
        ("http://user:hunter2@127.0.0.1", AddressError::Credentials),
        ("http://@127.0.0.1", AddressError::Credentials),
        ("https://user:hunter2@clickhouse.example", AddressError::Credentials),
        ("http://127.0.0.1#@evil.example", AddressError::Query),
        ("http://127.0.0.1?password=hunter2", AddressError::Query),
        ("http://evil.example\\@127.0.0.1", AddressError::Http),
        ("http://evil.example\\.127.0.0.1", AddressError::Http),
        ("http:\\\\127.0.0.1", AddressError::Http),
        ("http://127.0.0.1\n.evil.example", AddressError::Http),
        ("http://127.0.0.1\t.evil.example", AddressError::Http),
        (" http://127.0.0.1", AddressError::Http),
        ("http:127.0.0.1", AddressError::Http),
        ("http:/127.0.0.1", AddressError::Http),
        ("http:///127.0.0.1", AddressError::Ambiguous),
        ("http://", AddressError::Http),
        ("http://:8123", AddressError::Http),
        ("http://127.0.0.1:99999", AddressError::Http),
        ("ftp://127.0.0.1", AddressError::Http),
        ("postgres://127.0.0.1", AddressError::Http),
        ("127.0.0.1:8123", AddressError::Http),
        ("", AddressError::Http),
        ("http://2130706433", AddressError::Ambiguous),
        ("http://3232235777", AddressError::Ambiguous),
        ("http://0x7f000001", AddressError::Ambiguous),
        ("http://127.1", AddressError::Ambiguous),
        ("http://0177.0.0.1", AddressError::Ambiguous),
        ("http://127.0.0.1.", AddressError::Ambiguous),
        ("http://%31%32%37.0.0.1", AddressError::Ambiguous),
        ("http://ｌocalhost", AddressError::Ambiguous),
        ("http://１２７.0.0.1", AddressError::Ambiguous),
        ("http://[0:0:0:0:0:0:0:1]", AddressError::Ambiguous),
        ("http://[::ffff:127.0.0.1]", AddressError::Ambiguous),
    ] {
        assert_eq!(http(address), Err(error), "{address}");
    }
}

#[test]
fn kafka_in_plaintext_is_for_loopback_at_every_broker() {
    for (brokers, protocol, transport) in [
        ("127.0.0.1:9092", "plaintext", Loopback),
        ("127.0.0.1:9092, localhost:9093,[::1]:9094", "SASL_PLAINTEXT", Loopback),
        ("localhost", "plaintext", Loopback),
        ("127.0.0.1:9092,kafka-2:9092", "plaintext", Plaintext),
        ("kafka-1:9092,127.0.0.1:9092", "sasl_plaintext", Plaintext),
        ("0.0.0.0:9092", "plaintext", Plaintext),
        ("2130706433:9092", "plaintext", Plaintext),
        ("kafka-1:9092", "ssl", Verified),
        ("kafka-1:9092,kafka-2:9092", "Sasl_SSL", Verified),
    ] {
        assert_eq!(kafka(brokers, protocol), Ok(transport), "{brokers} {protocol}");
    }
    for brokers in [
        "",
        "kafka-1:9092,",
        ",127.0.0.1:9092",
        "PLAINTEXT://127.0.0.1:9092",
        "user:hunter2@kafka:9092",
        "127.0.0.1@evil.example:9092",
        "127.0.0.1:9092 evil.example:9092",
        "127.0.0.1:9092;evil.example:9092",
        "127.0.0.1:99999",
        "::1:9092",
        "[localhost]:9092",
    ] {
        for protocol in ["plaintext", "ssl"] {
            assert_eq!(kafka(brokers, protocol), Err(AddressError::Brokers), "{brokers}");
        }
    }
    for protocol in ["", "tls", "ssl ", "plain", "none"] {
        assert_eq!(kafka("127.0.0.1:9092", protocol), Err(AddressError::Protocol), "{protocol}");
    }
}

fn of_postgres(address: &str) -> Result<Transport, AddressError> {
    postgres_options(address, &TlsFiles::default()).map(|options| postgres(&options))
}

#[test]
fn postgres_is_verified_or_on_loopback() {
    for (address, transport) in [
        ("postgres://u:p@127.0.0.1:5432/d", Loopback),
        ("postgresql://u@localhost/d?sslmode=disable", Loopback),
        ("postgres://u@localhost/d?sslmode=require", Loopback),
        ("postgres://u@[::1]/d", Loopback),
        ("postgres://u@%2Fvar%2Frun%2Fpostgresql/d", Loopback),
        ("postgres:///d?host=/var/run/postgresql", Loopback),
        ("postgres://u@db/d?host=/tmp&sslmode=disable", Loopback),
        ("postgres://u:p@db.example/d?sslmode=verify-full", Verified),
        ("postgres://u:p@127.0.0.1/d?sslmode=verify-full", Verified),
        ("postgres://u:p@db.example/d?ssl-mode=VERIFY-FULL", Verified),
        ("postgres://u:p@db.example/d?sslmode=require", Unverified),
        ("postgres://u:p@db.example/d?sslmode=verify-ca", Unverified),
        ("postgres://u:p@db.example/d", Plaintext),
        ("postgres://u:p@db.example/d?sslmode=disable", Plaintext),
        ("postgres://u:p@db.example/d?sslmode=allow", Plaintext),
        ("postgres://u:p@db.example/d?sslmode=prefer", Plaintext),
        // The last word counts, as it does for sqlx.
        ("postgres://u:p@db.example/d?sslmode=verify-full&sslmode=disable", Plaintext),
        ("postgres://127.0.0.1@evil.example/d", Plaintext),
        ("postgres://u@127.0.0.1/d?host=evil.example", Plaintext),
        ("postgres://u@127.0.0.1/d?hostaddr=10.0.0.1", Plaintext),
        ("postgres://u@127.0.0.1,evil.example/d", Plaintext),
        ("postgres://u@localhost.evil.example/d", Plaintext),
        ("postgres://u@0.0.0.0/d", Plaintext),
        ("postgres://u@2130706433/d", Plaintext),
        ("postgres://u@127.1/d", Plaintext),
        ("postgres://u@[::ffff:127.0.0.1]/d", Plaintext),
    ] {
        assert_eq!(of_postgres(address), Ok(transport), "{address}");
    }
}

#[test]
fn postgres_addresses_that_nobody_reads_in_full_are_refused() {
    for (address, error) in [
        ("", AddressError::Postgres),
        ("http://127.0.0.1/d", AddressError::Postgres),
        ("mysql://127.0.0.1/d", AddressError::Postgres),
        ("host=127.0.0.1 dbname=d", AddressError::Postgres),
        ("postgres://u@127.0.0.1:x/d", AddressError::Postgres),
        ("postgres://u@127.0.0.1/d?sslmode=full", AddressError::Postgres),
        // sqlx would log it with its value, and connect without it.
        ("postgres://u@127.0.0.1/d?pasword=hunter2", AddressError::Parameter),
        ("postgres://u@127.0.0.1/d?SSLMODE=verify-full", AddressError::Parameter),
        ("postgres://u@db.example/d#?sslmode=verify-full", AddressError::Parameter),
    ] {
        assert_eq!(of_postgres(address).unwrap_err(), error, "{address}");
    }
}

#[test]
fn a_given_authority_means_that_postgres_has_to_prove_who_it_is() {
    let files = TlsFiles { ca_file: Some("/ca.pem".into()), ..TlsFiles::default() };
    let with = |address: &str| postgres(&postgres_options(address, &files).unwrap());
    assert_eq!(with("postgres://u@db.example/d"), Verified);
    assert_eq!(with("postgres://u@127.0.0.1/d"), Verified);
    assert_eq!(with("postgres://u@db.example/d?sslmode=prefer"), Plaintext, "what was said counts");
}

#[test]
fn a_listener_without_tls_is_for_loopback() {
    for (address, transport) in [
        ("127.0.0.1:8080", Loopback),
        ("localhost:0", Loopback),
        ("[::1]:8080", Loopback),
        ("0.0.0.0:8080", Plaintext),
        ("[::]:8080", Plaintext),
        ("api.example:8080", Plaintext),
    ] {
        assert_eq!(listen(address, false), Ok(transport), "{address}");
        assert_eq!(listen(address, true), Ok(Verified), "{address}");
    }
    for address in ["", "8080", ":8080", "127.0.0.1", "http://127.0.0.1:80", "127.0.0.1:x"] {
        assert_eq!(listen(address, false), Err(AddressError::Listen), "{address}");
    }
}

#[test]
fn only_what_can_be_read_or_changed_needs_permission() {
    for transport in [Verified, Loopback] {
        assert_eq!(transport.permit(false, "x"), Ok(transport));
        assert!(!transport.is_open());
    }
    assert_eq!(Plaintext.permit(false, "x"), Err(AddressError::Plaintext { how: "x" }));
    assert_eq!(Unverified.permit(false, "x"), Err(AddressError::Unverified { how: "x" }));
    for transport in [Plaintext, Unverified] {
        assert_eq!(transport.permit(true, "x"), Ok(transport));
        assert!(transport.is_open());
    }
}

proptest! {
    /// Whatever is said to be loopback is connected to on loopback by the parser that the clients use.
    #[test]
    fn no_text_is_loopback_to_us_and_another_host_to_the_clients(
        host in "(127\\.0\\.0\\.1|localhost|\\[::1\\]|[0-9.x]{1,12}|[a-z.@:\\\\/?#%\\[\\]]{0,8}){1,3}",
        rest in "[:/?#@\\\\a-z0-9.]{0,12}",
    ) {
        let address = format!("http://{host}{rest}");
        if http(&address) == Ok(Loopback) {
            let client = reqwest::Url::parse(&address).unwrap();
            let loopback = match client.host().unwrap() {
                Host::Domain(name) => name == "localhost",
                Host::Ipv4(address) => address.is_loopback(),
                Host::Ipv6(address) => address.is_loopback(),
            };
            prop_assert!(loopback, "{}", address);
        }
    }

    #[test]
    fn no_error_repeats_a_part_of_the_address(secret in "[a-z]{12}", place in 0..6_usize) {
        let address = match place {
            0 => format!("http://user:{secret}@h"),
            1 => format!("http://h/?password={secret}"),
            2 => format!("http://{secret}"),
            3 => format!("postgres://u:{secret}@h/d"),
            4 => format!("postgres://u@h/d?{secret}={secret}"),
            _ => format!("postgres://u@h/d?sslmode={secret}"),
        };
        let errors = [
            http(&address).and_then(|transport| transport.permit(false, HTTPS)).map(|_| ()),
            of_postgres(&address).and_then(|transport| transport.permit(false, VERIFY_FULL)).map(|_| ()),
            kafka(&address, "plaintext").map(|_| ()),
            listen(&address, false).map(|_| ()),
        ];
        for error in errors.into_iter().filter_map(Result::err) {
            let shown = format!("{error} {error:?}");
            prop_assert!(!shown.contains(&secret), "{}", shown);
        }
    }
}

fn write(dir: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn files_for_tls_are_named_when_they_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["a.example".to_string()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["a.example".to_string()]).unwrap();
    let certificate = write(dir.path(), "certificate.pem", &made.cert.pem());
    let key = write(dir.path(), "key.pem", &made.signing_key.serialize_pem());
    let other_key = write(dir.path(), "other-key.pem", &other.signing_key.serialize_pem());
    let empty = write(dir.path(), "empty.pem", "");
    let broken =
        write(dir.path(), "broken.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");

    let files = |ca: Option<&Path>, certificate: Option<&Path>, key: Option<&Path>| TlsFiles {
        ca_file: ca.map(Into::into),
        client_certificate: certificate.map(Into::into),
        client_key: key.map(Into::into),
    };
    TlsFiles::default().check().unwrap();
    files(Some(&certificate), Some(&certificate), Some(&key)).check().unwrap();
    for (files, part) in [
        (files(Some(Path::new("/nonexistent/ca.pem")), None, None), "/nonexistent/ca.pem"),
        (files(Some(&empty), None, None), "empty.pem holds no certificates"),
        (files(Some(&key), None, None), "key.pem holds no certificates"),
        (files(Some(&broken), None, None), "broken.pem holds something"),
        (files(None, Some(&certificate), None), "only of use together"),
        (files(None, None, Some(&key)), "only of use together"),
        (files(None, Some(&certificate), Some(&certificate)), "certificate.pem holds no private key"),
        (files(None, Some(&certificate), Some(&other_key)), "don't belong together"),
    ] {
        let error = crate::error_chain(&files.check().unwrap_err());
        assert!(error.contains(part), "{part} is not in {error}");
        assert!(!error.contains("PRIVATE"), "{error}");
    }
}
