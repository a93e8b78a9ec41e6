//! Kafka's default partitioner, so that a tenant's partition is the same for every producer and in storage.

use uuid::Uuid;

const SEED: u32 = 0x9747_b28c;
const M: u32 = 0x5bd1_e995;

/// Kafka's murmur2 of the key.
pub fn murmur2(key: &[u8]) -> u32 {
    let (words, tail) = key.as_chunks::<4>();
    let mut hash = SEED ^ key.len() as u32;
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !tail.is_empty() {
        for (position, byte) in tail.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * position);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// Partition of a message key among `count`: murmur2 with the sign bit cleared, modulo count.
///
/// # Panics
/// If `count` is not positive.
pub fn partition_of_key(key: &[u8], count: i32) -> i32 {
    assert!(count > 0, "a topic has at least one partition");
    (murmur2(key) & 0x7fff_ffff) as i32 % count
}

/// Partition of a tenant among `count`: that of its lower-case text.
///
/// # Panics
/// If `count` is not positive.
pub fn partition_of(tenant_id: Uuid, count: i32) -> i32 {
    let mut text = Uuid::encode_buffer();
    partition_of_key(tenant_id.hyphenated().encode_lower(&mut text).as_bytes(), count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of Kafka's own unit test (UtilsTest.testMurmur2).
    #[test]
    fn murmur2_gives_kafkas_values() {
        let cases: [(&[u8], i32); 6] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
        ];
        for (key, hash) in cases {
            assert_eq!(murmur2(key) as i32, hash, "{key:?}");
        }
    }

    #[test]
    fn one_partition_takes_all() {
        for byte in 0..=255 {
            assert_eq!(partition_of(Uuid::from_bytes([byte; 16]), 1), 0);
        }
    }

    #[test]
    #[should_panic(expected = "at least one partition")]
    fn no_partitions_is_a_fault_of_the_caller() {
        partition_of(Uuid::max(), 0);
    }
}
