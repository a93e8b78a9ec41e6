//! The decoder on hostile bytes: mutations of a kept corpus. Bounded by default, see `tests/corpus/README.md`.

#[path = "../common/mod.rs"]
mod common;
mod counting;
mod mutator;
mod seeds;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use usage_schemas::codec::{DecodeError, Decoder, Encoder};
use usage_schemas::{Bounds, Marker, Quantity, RecordRef, Timestamp, ids, json, validate};

use mutator::Mutator;

const ITERATIONS: u64 = 150_000;
/// Inputs of one outcome that are kept as material for more.
const KEPT_EACH: usize = 24;

fn corpus_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// Name and bytes of every input, in the order of their names.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(corpus_dir()).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "bin"));
    paths.sort();
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_string();
    paths.iter().map(|path| (name(path), std::fs::read(path).unwrap())).collect()
}

fn decoder() -> Decoder {
    let text = |name: &str| std::fs::read_to_string(corpus_dir().join(name)).unwrap();
    Decoder::with_schemas(&[&text("older.avsc"), &text("newer.avsc")]).unwrap()
}

/// Decodes and holds the outcome against the rules: no allocation, and a record that is read can be written and read again.
fn check(decoder: &Decoder, encoder: &Encoder, value: &[u8]) -> Result<(), DecodeError> {
    let (decoded, allocated) = counting::bytes_allocated(|| decoder.decode(value));
    assert_eq!(allocated, 0, "decoding allocates");
    let record = decoded?;
    let again = encoder.encode_ref(&record);
    assert_eq!(decoder.decode(&again).as_ref(), Ok(&record), "written and read again");
    check_what_follows(&record);
    Ok(())
}

/// What the consumer does with a record next must stand anything, too.
fn check_what_follows(record: &RecordRef<'_>) {
    let (hash, allocated) = counting::bytes_allocated(|| ids::content_hash(record));
    assert_eq!(allocated, 0, "hashing allocates");
    assert_eq!(hash, ids::content_hash(&record.to_owned().borrowed()));
    let now = record.timestamp;
    let (judged, allocated) =
        counting::bytes_allocated(|| validate::validate(record, &Bounds::default(), now));
    // A refusal has a text.
    assert!(allocated <= if judged.is_ok() { 0 } else { 1_024 }, "validation allocates {allocated} bytes");
    assert_eq!(Quantity::parse(&record.value.to_string()), Ok(record.value));
    let time = record.timestamp.to_string();
    // Only years of four digits are RFC 3339.
    assert!(Timestamp::parse(&time) == Ok(record.timestamp) || time.starts_with(['+', '-']), "{time}");
}

fn outcome(result: &Result<(), DecodeError>) -> &'static str {
    match result {
        Ok(()) => "good",
        Err(DecodeError::Frame) => "frame",
        Err(DecodeError::UnknownSchema(_)) => "unknown-schema",
        Err(DecodeError::Truncated) => "truncated",
        Err(DecodeError::Trailing(_)) => "trailing",
        Err(DecodeError::Field { .. }) => "field",
    }
}

#[test]
fn the_corpus_is_what_its_names_say() {
    let (decoder, encoder) = (decoder(), Encoder::new());
    let corpus = corpus();
    for (name, value) in &corpus {
        let result = check(&decoder, &encoder, value);
        assert!(name.starts_with(outcome(&result)), "{name}: {result:?}");
    }
    for prefix in ["good", "frame", "unknown-schema", "truncated", "trailing", "field"] {
        assert!(corpus.iter().any(|(name, _)| name.starts_with(prefix)), "no {prefix} in the corpus");
    }
}

/// The messages of `wire.json` are in the corpus, whatever directory the case files are read from.
#[test]
fn the_corpus_has_every_wire_message() {
    let corpus = corpus();
    for (name, value) in seeds::wire_messages() {
        assert!(corpus.iter().any(|(_, kept)| *kept == value), "{name}");
    }
}

/// How long to go on: seconds if asked for, else a number of iterations.
fn goes_on() -> impl FnMut(u64) -> bool {
    let seconds = std::env::var("USAGE_FUZZ_SECONDS").ok().map(|text| text.parse().expect("seconds"));
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    move |iteration| match end {
        Some(end) => !iteration.is_multiple_of(1_024) || Instant::now() < end,
        None => iteration < ITERATIONS,
    }
}

fn seed() -> u64 {
    std::env::var("USAGE_FUZZ_SEED").map_or(1, |text| text.parse().expect("a number"))
}

/// Writes the input down before it is tried, in memory only; a panic in between shows it.
struct Shown<'a>(&'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz_decode-failure.bin");
            let written = std::fs::write(&path, self.0);
            eprintln!("input of {} bytes, written to {}: {written:?}", self.0.len(), path.display());
        }
    }
}

#[test]
fn mutated_values() {
    let (decoder, encoder) = (decoder(), Encoder::new());
    let (good, broken) = corpus().into_iter().partition(|(name, _)| name.starts_with("good"));
    let values = |named: Vec<(String, Vec<u8>)>| named.into_iter().map(|(_, value)| value).collect();
    let (mut good, mut broken): (Vec<Vec<u8>>, Vec<Vec<u8>>) = (values(good), values(broken));
    let mut mutator = Mutator::new(seed());
    let mut kept: HashMap<String, usize> = HashMap::new();
    let mut counts: HashMap<&str, u64> = HashMap::new();
    let mut goes_on = goes_on();
    let mut iterations = 0;
    let started = Instant::now();
    while goes_on(iterations) {
        iterations += 1;
        let value = mutator.value(&good, &broken);
        let shown = Shown(&value);
        let result = check(&decoder, &encoder, &value);
        drop(shown);
        *counts.entry(outcome(&result)).or_default() += 1;
        // No coverage tells what is new; a refusal for another reason, or of a record of another writer, does.
        let novelty = match &result {
            Err(DecodeError::Field { field, detail }) => format!("{:?} {field} {detail}", value.get(2)),
            result => format!("{:?} {}", value.get(2).filter(|_| result.is_ok()), outcome(result)),
        };
        let kept = kept.entry(novelty).or_default();
        if *kept < KEPT_EACH {
            *kept += 1;
            if result.is_ok() { good.push(value) } else { broken.push(value) }
        }
    }
    let pool = good.len() + broken.len();
    println!("{iterations} values in {:.1?}, {pool} in the pool: {counts:?}", started.elapsed());
    for outcome in ["good", "frame", "unknown-schema", "truncated", "trailing", "field"] {
        assert!(counts.contains_key(outcome), "no mutation was {outcome}: the mutator is blunt");
    }
}

/// The text parsers on mutated texts: they may allocate in proportion to what they are given, no more.
#[test]
fn mutated_texts() {
    let mut pool: Vec<Vec<u8>> = seeds::texts().iter().map(|text| text.as_bytes().to_vec()).collect();
    let mut mutator = Mutator::new(seed());
    let mut goes_on = goes_on();
    let (mut iterations, mut accepted) = (0, 0u64);
    while goes_on(iterations) {
        iterations += 1;
        let text = mutator.text(&pool);
        let shown = Shown(&text);
        let (outcome, allocated) = counting::bytes_allocated(|| parse_all(&text));
        assert!(allocated <= 16 * text.len() + 4_096, "{allocated} bytes allocated for {}", text.len());
        drop(shown);
        accepted += u64::from(outcome);
        if outcome && pool.len() < 2_000 {
            pool.push(text);
        }
    }
    println!("{iterations} texts, {accepted} accepted by one of the parsers");
    assert!(
        accepted > iterations / 1_000,
        "only {accepted} of {iterations} texts pass: the mutator is blunt"
    );
}

fn parse_all(bytes: &[u8]) -> bool {
    let payload = json::decode(bytes, "src").is_ok();
    let marker = Marker::decode(bytes).is_ok();
    let Ok(text) = std::str::from_utf8(bytes) else { return payload || marker };
    let quantity = Quantity::from_json(text).is_ok() | Quantity::parse(text).is_ok();
    let time = Timestamp::parse(text).is_ok();
    let metadata = validate::metadata(text, &Bounds::default()).is_ok();
    payload || marker || quantity || time || metadata
}
