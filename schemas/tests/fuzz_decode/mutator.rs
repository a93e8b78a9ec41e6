//! Breaks bytes, seeded.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// Bytes of a single-object frame before the body.
const FRAME: usize = 10;
const LONGEST: usize = 4_096;

/// Bytes at the borders of varints, signs and JSON.
const EDGES: &[u8] = &[0, 1, 2, 3, 4, 31, 32, 33, 0x7e, 0x7f, 0x80, 0x81, 0xc3, 0xfe, 0xff];
/// Varints that lie: -1, 2^31, 2^40, i64::MIN and MAX, bit 64, eleven bytes.
const VARINTS: &[&[u8]] = &[
    &[1],
    &[0x80, 0x80, 0x80, 0x80, 0x10],
    &[0x80, 0x80, 0x80, 0x80, 0x80, 0x40],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
    &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
];
const TOKENS: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b",",
    b":",
    b"null",
    b"-",
    b"e",
    b"e999999999999999999999",
    b".",
    b"0",
    b"9",
    b"T",
    b"Z",
    b"+",
    b"60",
    b"\xff",
    b"\xc3\xbc",
    b"\0",
    b" ",
    b"99999999999999999999",
];

pub struct Mutator {
    random: SmallRng,
}

impl Mutator {
    pub fn new(seed: u64) -> Self {
        Self { random: SmallRng::seed_from_u64(seed) }
    }

    /// A broken message, mostly made of a good one; most keep their frame, or nothing else would ever be tried.
    pub fn value(&mut self, good: &[Vec<u8>], broken: &[Vec<u8>]) -> Vec<u8> {
        let from = if self.random.random_ratio(19, 20) { FRAME } else { 0 };
        let pool = if self.random.random_ratio(4, 5) { good } else { broken };
        self.mutate(pool, from, VARINTS)
    }

    /// A broken text.
    pub fn text(&mut self, pool: &[Vec<u8>]) -> Vec<u8> {
        self.mutate(pool, 0, TOKENS)
    }

    fn mutate(&mut self, pool: &[Vec<u8>], from: usize, tokens: &[&[u8]]) -> Vec<u8> {
        let mut bytes = pool.choose(&mut self.random).expect("a corpus").clone();
        let steps = if self.random.random() { 1 } else { self.random.random_range(2..=4) };
        for _ in 0..steps {
            let other = pool.choose(&mut self.random).expect("a corpus");
            self.step(&mut bytes, from, other, tokens);
        }
        bytes.truncate(LONGEST);
        bytes
    }

    fn step(&mut self, bytes: &mut Vec<u8>, from: usize, other: &[u8], tokens: &[&[u8]]) {
        if bytes.len() <= from {
            bytes.extend_from_slice(other);
            return;
        }
        let at = self.random.random_range(from..bytes.len());
        let end = (at + self.random.random_range(1..=16)).min(bytes.len());
        match self.random.random_range(0..9) {
            0 => bytes[at] ^= 1 << self.random.random_range(0..8),
            1 => bytes[at] = *EDGES.choose(&mut self.random).expect("some"),
            2 => bytes[at] = bytes[at].wrapping_add(if self.random.random() { 1 } else { 0xff }),
            3 => bytes.insert(at, self.random.random()),
            4 => drop(bytes.drain(at..end)),
            5 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            6 => bytes.truncate(at),
            7 => {
                let token = *tokens.choose(&mut self.random).expect("some");
                let replaced = if self.random.random() { at } else { at + 1 };
                bytes.splice(at..replaced, token.iter().copied());
            }
            _ => {
                // The end of another input.
                let start = self.random.random_range(0..=other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[start..]);
            }
        }
    }
}
