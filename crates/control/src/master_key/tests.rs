use super::*;

const A: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const B: &str = "F0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF101112131415161718191a1b1c1d1e1f";

fn keys(current: &str, other: Option<&str>) -> MasterKeys {
    let secret = |text: &str| SecretString::from(text.to_string());
    MasterKeys::new(&secret(current), other.map(secret).as_ref()).unwrap()
}

fn source_key() -> SecretSlice<u8> {
    vec![7; 32].into()
}

fn opened(keys: &MasterKeys, source: &str, key_id: &str, sealed: &Sealed) -> Result<Vec<u8>, String> {
    let opened = keys.open(source, key_id, sealed.clone());
    opened.map(|key| key.expose_secret().to_vec()).map_err(|error| error.to_string())
}

#[test]
fn what_is_sealed_opens_in_its_row_only() {
    let keys = keys(A, None);
    let sealed = keys.seal("mail", "m1", &source_key()).unwrap();
    assert_eq!(opened(&keys, "mail", "m1", &sealed), Ok(vec![7; 32]));
    // The last pair would be the same text as the first if the parts were only joined.
    for (source, key_id) in [("mail", "m2"), ("llm", "m1"), ("mailm", "1"), ("mai", "lm1")] {
        let error = opened(&keys, source, key_id, &sealed).unwrap_err();
        assert!(error.contains(key_id) && error.contains("does not open"), "{error}");
    }
    for at in 0..sealed.bytes.len() {
        let mut changed = sealed.clone();
        changed.bytes[at] ^= 1;
        assert!(opened(&keys, "mail", "m1", &changed).is_err(), "byte {at}");
    }
    for length in 0..sealed.bytes.len() {
        let mut cut = sealed.clone();
        cut.bytes.truncate(length);
        assert!(opened(&keys, "mail", "m1", &cut).is_err(), "{length} bytes");
    }
}

#[test]
fn the_same_key_is_never_sealed_the_same_way_twice() {
    let keys = keys(A, None);
    let seal = || keys.seal("mail", "m1", &source_key()).unwrap().bytes;
    let sealed: std::collections::HashSet<Vec<u8>> = std::iter::repeat_with(seal).take(100).collect();
    assert_eq!(sealed.len(), 100);
    let nonces: std::collections::HashSet<&[u8]> = sealed.iter().map(|bytes| &bytes[1..13]).collect();
    assert_eq!(nonces.len(), 100);
    assert!(sealed.iter().all(|bytes| !bytes.windows(8).any(|window| window == [7; 8])));
}

#[test]
fn another_master_key_is_named_by_its_id_and_opens_while_it_is_the_other_one() {
    let (old, new) = (keys(A, None), keys(B, None));
    let sealed = old.seal("mail", "m1", &source_key()).unwrap();
    let error = opened(&new, "mail", "m1", &sealed).unwrap_err();
    for part in ["control_database.master_key", old.current_id(), new.current_id(), "mail", "m1"] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    let both = keys(B, Some(A));
    assert_eq!(opened(&both, "mail", "m1", &sealed), Ok(vec![7; 32]));
    assert_eq!(both.seal("mail", "m1", &source_key()).unwrap().master_key_id, new.current_id());
    // An id that lies does not help: the key itself must fit.
    let lying = Sealed { master_key_id: new.current_id().into(), ..sealed };
    assert!(opened(&both, "mail", "m1", &lying).unwrap_err().contains("does not open"));
}

#[test]
fn a_master_key_that_is_none_is_refused_without_being_shown() {
    let short = &A[..62];
    let long = format!("{A}00");
    let letter = A.replace("0a", "0x");
    for text in ["", short, &long, &letter, "é0010203040506070809", &A.replace("00", "-1")] {
        let error = MasterKeys::new(&SecretString::from(text.to_string()), None).unwrap_err().to_string();
        assert_eq!(error, "control_database.master_key: expected 32 bytes in hex");
    }
    let other = SecretString::from(short.to_string());
    let error = MasterKeys::new(&SecretString::from(A.to_string()), Some(&other)).unwrap_err().to_string();
    assert!(error.starts_with("control_database.other_master_key: "), "{error}");
    assert!(!format!("{:?}", keys(A, Some(B))).contains("0405"));
}

#[test]
fn a_key_may_come_from_a_file_but_not_from_two_places() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("master.key");
    std::fs::write(&file, format!("{A}\n")).unwrap();
    let config = |key: Option<&str>, path: Option<&Path>, other: Option<&str>| DatabaseConfig {
        master_key: key.map(|text| SecretString::from(text.to_string())),
        master_key_file: path.map(Into::into),
        other_master_key: other.map(|text| SecretString::from(text.to_string())),
        ..DatabaseConfig::new("postgres://h/d")
    };
    let found = |config| MasterKeys::configured(&config).map_err(|error| error.to_string());
    assert_eq!(
        found(config(None, Some(&file), None)).unwrap().unwrap().current_id(),
        keys(A, None).current_id()
    );
    assert!(found(config(None, None, None)).unwrap().is_none());
    let both = found(config(Some(A), Some(&file), None)).unwrap_err();
    assert!(both.contains("control_database.master_key_file: not together"), "{both}");
    let alone = found(config(None, None, Some(B))).unwrap_err();
    assert!(alone.contains("control_database.other_master_key: only beside"), "{alone}");
    let gone = found(config(None, Some(&dir.path().join("no")), None)).unwrap_err();
    assert!(gone.contains("control_database.master_key_file") && gone.contains("can't be read"), "{gone}");
}
