use super::*;

fn signing_key() -> SigningKey {
    SigningKey::new("demo-1", &[7; 32])
}

#[test]
fn own_signatures_verify() {
    let key = signing_key();
    let signature = key.sign(b"tenant", b"value");
    assert_eq!(signature.len(), HEX_DIGITS);
    assert!(key.verify(b"tenant", b"value", signature.as_bytes()));
    assert!(key.clone().verify(b"tenant", b"value", signature.as_bytes()));
    assert_eq!(key.sign(b"tenant", b"value"), signature, "the keyed state is not used up");
}

/// RFC 4231's way of checking: the state must be HMAC over the parts and their lengths, whatever the key's length.
#[test]
fn keys_longer_than_a_block_are_hashed_first() {
    let long = SigningKey::new("k", &[0xaa; 131]);
    let hashed = <Sha256 as sha2::Digest>::digest([0xaa; 131]);
    assert_eq!(long.sign(b"a", b"b"), SigningKey::new("k", &hashed).sign(b"a", b"b"));
    assert_ne!(long.sign(b"a", b"b"), SigningKey::new("k", b"").sign(b"a", b"b"));
}

#[test]
fn every_part_is_covered_and_bytes_cannot_move_between_parts() {
    let signature = signing_key().sign(b"tenant", b"value");
    let signature = signature.as_bytes();
    assert!(!signing_key().verify(b"tenanu", b"value", signature));
    assert!(!signing_key().verify(b"tenant", b"valuf", signature));
    assert!(!signing_key().verify(b"tenantv", b"alue", signature));
    assert!(!signing_key().verify(b"", b"tenantvalue", signature));
    assert!(!SigningKey::new("demo-2", &[7; 32]).verify(b"tenant", b"value", signature));
    assert!(!SigningKey::new("demo-1", &[8; 32]).verify(b"tenant", b"value", signature));
    assert!(!SigningKey::new("demo-", &[7; 32]).verify(b"1tenant", b"value", signature));
}

#[test]
fn only_64_lower_case_hex_digits_are_a_signature() {
    let key = signing_key();
    let good = key.sign(b"tenant", b"value");
    let mut flipped = good.clone().into_bytes();
    flipped[63] = if flipped[63] == b'0' { b'1' } else { b'0' };
    let refused = [
        Vec::new(),
        good[..63].into(),
        good[..62].into(),
        format!("{good}0").into_bytes(),
        good.to_uppercase().into_bytes(),
        format!("0x{}", &good[2..]).into_bytes(),
        vec![b'g'; 64],
        vec![0; 64],
        flipped,
    ];
    assert_ne!(good, good.to_uppercase(), "the case tells something");
    for signature in refused {
        assert!(!key.verify(b"tenant", b"value", &signature), "{signature:?}");
    }
}

#[test]
fn debug_output_tells_no_secret() {
    assert_eq!(format!("{:?}", signing_key()), r#"SigningKey { key_id: "demo-1", .. }"#);
}
