//! apache-avro is the reference for the own decoder: both agree on every record, also from older and newer writers, and on
//! which bytes are none.

mod records;
mod reference;
mod writers;

use apache_avro::Schema;
use proptest::prelude::*;
use usage_schemas::codec::{DecodeError, Decoder, Encoder};
use usage_schemas::{UsageRecord, frame, schema};

use records::any_record;
use reference::Reference;
use writers::{Writer, any_writer};

/// Body of a value in the current schema.
fn body(record: &UsageRecord) -> Vec<u8> {
    Encoder::new().encode(record).split_off(10)
}

fn framed(fingerprint: u64, body: &[u8]) -> Vec<u8> {
    let mut value = Vec::new();
    frame::start_single_object(fingerprint, &mut value);
    value.extend_from_slice(body);
    value
}

/// Both readers on a message of `writer`.
fn check_writer(writer: &Writer, record: &UsageRecord, seed: u64) -> Result<(), TestCaseError> {
    let text = writer.schema();
    let parsed = Schema::parse_str(&text).map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
    let canonical = schema::canonical_form(&parsed);
    let body = writer.encode(&canonical, record, seed);
    let expected = writer.as_read(record);

    let reference = Reference::resolving(&canonical).read(&body);
    prop_assert_eq!(reference.as_ref(), Some(&expected), "the reference, {}", text);

    let decoder =
        Decoder::with_schemas(&[&text]).map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
    let value = framed(schema::fingerprint(&canonical), &body);
    let own = decoder.decode(&value).map(|record| record.to_owned());
    prop_assert_eq!(own, Ok(expected), "{}", text);

    let mut longer = value.clone();
    longer.push(0);
    prop_assert_eq!(decoder.decode(&longer), Err(DecodeError::Trailing(1)), "{}", text);
    // Without its last byte nothing is left of the record, unless that byte belongs to nothing.
    let shorter = decoder.decode(&value[..value.len() - 1]);
    prop_assert!(shorter.is_err(), "{}: {:?}", text, shorter);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn records_of_the_current_schema(record in any_record()) {
        let value = Encoder::new().encode(&record);
        prop_assert_eq!(Reference::current().encode(&record), &value[10..], "encoded from values, not by serde");
        prop_assert_eq!(Reference::current().read(&value[10..]), Some(record.clone()));
        let decoded = Decoder::new().decode(&value).map(|record| record.to_owned());
        prop_assert_eq!(decoded, Ok(record));
    }

    /// A writer of the past: it ends with any of the fields that have defaults.
    #[test]
    fn records_of_an_older_schema(record in any_record(), absent in 1usize..=6, seed in any::<u64>()) {
        check_writer(&Writer::older(absent), &record, seed)?;
    }

    /// A writer of the future: fields of any type are appended.
    #[test]
    fn records_of_a_newer_schema(record in any_record(), extras in writers::any_extras(1..6), seed in any::<u64>()) {
        check_writer(&Writer::newer(extras), &record, seed)?;
    }

    /// More than the rules for evolution allow: fields in any order, unions turned round, some missing, others in between.
    #[test]
    fn records_of_any_schema(record in any_record(), writer in any_writer(), seed in any::<u64>()) {
        check_writer(&writer, &record, seed)?;
    }
}

/// A change of some bytes.
#[derive(Debug, Clone)]
enum Edit {
    Set(prop::sample::Index, u8),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
    Cut(prop::sample::Index),
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            _ if bytes.is_empty() => {}
            Edit::Set(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Edit::Insert(at, more) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, more.iter().copied());
            }
            Edit::Remove(at, count) => {
                let at = at.index(bytes.len());
                bytes.drain(at..(at + count).min(bytes.len()));
            }
            Edit::Cut(at) => bytes.truncate(at.index(bytes.len())),
        }
    }
}

fn any_edit() -> impl Strategy<Value = Edit> {
    use prop::sample::Index;
    let byte = prop_oneof![any::<u8>(), prop::sample::select(vec![0, 1, 2, 4, 0x7f, 0x80, 0xff])];
    prop_oneof![
        4 => (any::<Index>(), byte).prop_map(|(at, byte)| Edit::Set(at, byte)),
        1 => (any::<Index>(), prop::collection::vec(any::<u8>(), 1..4)).prop_map(|(at, more)| Edit::Insert(at, more)),
        1 => (any::<Index>(), 1usize..4).prop_map(|(at, count)| Edit::Remove(at, count)),
        1 => any::<Index>().prop_map(Edit::Cut),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_096))]

    /// What the own decoder reads, the reference reads alike; what it refuses, the reference refuses too, but for the leniencies
    /// that are listed here.
    #[test]
    fn broken_bytes(record in any_record(), edits in prop::collection::vec(any_edit(), 1..4)) {
        let mut bytes = body(&record);
        for edit in &edits {
            edit.apply(&mut bytes);
        }
        let value = framed(schema::current_fingerprint(), &bytes);
        let own = Decoder::new().decode(&value).map(|record| record.to_owned());
        let reference = Reference::current().read(&bytes);
        match own {
            Ok(record) => prop_assert_eq!(reference, Some(record)),
            // It takes a text or union that ends early for null.
            Err(DecodeError::Truncated) => {}
            // It drops the bits beyond 64.
            Err(DecodeError::Field { detail: "integer of more than 64 bits", .. }) => {}
            Err(error) => prop_assert_eq!(reference, None, "{}", error),
        }
    }
}
