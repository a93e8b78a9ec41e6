//! Which record ids are stored, kept in memory at about 2 bytes an id: a miss proves that an id is new, a hit is checked
//! exactly in storage (protocol 5.3).
//!
//! Blocks of one cache line with 9 bits per id. The first layer is made for the ids that a takeover loaded, 17 bits each (16 give
//! 0.09 % false hits, too near to the bound of 0.1 %); what is stored later goes into layers of 32 bits an id, whose false hits
//! hardly add to that. When too many such layers have filled, the partition's filter is loaded anew.

use uuid::Uuid;

const BITS_PER_ID: usize = 9;
const BLOCK_BITS: usize = 512;
const LOADED_BITS_PER_ID: usize = 17;
const GROWTH_BITS_PER_ID: usize = 32;
/// Ids of the smallest layer: 136 KiB.
const SMALLEST_LAYER: usize = 64 * 1024;
/// With this many layers of growth the false hits stay below 0.1 %.
const GROWTH_LAYERS: usize = 3;

/// A hashed id; the secret seed keeps whoever chooses ids from choosing the filter's bits.
type Hashed = u128;

struct Layer {
    blocks: Vec<[u64; BLOCK_BITS / 64]>,
    capacity: usize,
    len: usize,
}

impl Layer {
    fn new(capacity: usize, bits_per_id: usize) -> Self {
        let blocks = (capacity * bits_per_id).div_ceil(BLOCK_BITS).max(1);
        Self { blocks: vec![[0; BLOCK_BITS / 64]; blocks], capacity, len: 0 }
    }

    fn block(&self, hashed: Hashed) -> usize {
        let high = (hashed >> 96) as u64;
        // Multiply and shift maps 32 bits evenly onto any number of blocks below 2^32.
        ((high * self.blocks.len() as u64) >> 32) as usize
    }

    /// Places of an id's bits inside its block.
    fn places(hashed: Hashed) -> impl Iterator<Item = (usize, u64)> {
        (0..BITS_PER_ID).map(move |i| {
            let place = (hashed >> (9 * i)) as usize & (BLOCK_BITS - 1);
            (place / 64, 1 << (place % 64))
        })
    }

    fn insert(&mut self, hashed: Hashed) {
        let block = self.block(hashed);
        for (word, bit) in Self::places(hashed) {
            self.blocks[block][word] |= bit;
        }
        self.len += 1;
    }

    fn contains(&self, hashed: Hashed) -> bool {
        let block = &self.blocks[self.block(hashed)];
        Self::places(hashed).all(|(word, bit)| block[word] & bit != 0)
    }

    fn bytes(&self) -> usize {
        self.blocks.len() * BLOCK_BITS / 8
    }
}

/// The ids of one partition's tenants.
pub struct IdFilter {
    seed: [u64; 4],
    /// The loaded one first.
    layers: Vec<Layer>,
}

impl IdFilter {
    /// Room for `ids` at the usual false-hit rate; it grows beyond.
    pub fn with_capacity(ids: usize) -> Self {
        let layers = vec![Layer::new(ids.max(SMALLEST_LAYER), LOADED_BITS_PER_ID)];
        Self { seed: std::array::from_fn(|_| rand::random()), layers }
    }

    fn hash(&self, id: &Uuid) -> Hashed {
        fn fold(a: u64, b: u64) -> u64 {
            let product = u128::from(a) * u128::from(b);
            (product as u64) ^ (product >> 64) as u64
        }
        let (high, low) = id.as_u64_pair();
        let [s0, s1, s2, s3] = self.seed;
        let first = fold(high ^ s0, low ^ s1);
        let second = fold(low ^ s2, high.rotate_left(32) ^ s3);
        let (first, second) = (fold(first ^ s3, second ^ s0), fold(second ^ s1, first ^ s2));
        u128::from(first) << 64 | u128::from(second)
    }

    pub fn insert(&mut self, id: &Uuid) {
        let hashed = self.hash(id);
        let last = self.layers.last_mut().expect("there is a first layer");
        if last.len < last.capacity {
            last.insert(hashed);
            return;
        }
        // Growth by half of everything keeps both the number of layers and the unused room small.
        let grown = Layer::new((self.len() / 2).max(SMALLEST_LAYER), GROWTH_BITS_PER_ID);
        self.layers.push(grown);
        self.layers.last_mut().expect("it was pushed just now").insert(hashed);
    }

    /// False means: certainly not stored.
    pub fn may_contain(&self, id: &Uuid) -> bool {
        let hashed = self.hash(id);
        self.layers.iter().any(|layer| layer.contains(hashed))
    }

    /// Ids inserted, counting repeats.
    pub fn len(&self) -> usize {
        self.layers.iter().map(|layer| layer.len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn bytes(&self) -> usize {
        self.layers.iter().map(Layer::bytes).sum()
    }

    /// True once a load of all ids from storage would make it smaller and sharper.
    pub fn wants_reload(&self) -> bool {
        self.layers.len() > GROWTH_LAYERS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids as they are in life: hashes, and UUIDv7 with a shared time and a counter.
    fn id(i: u64, v7: bool) -> Uuid {
        if v7 {
            return Uuid::from_u64_pair(0x0192_0000_0000_7000 | (i >> 20) << 16, 0x8000_0000_0000_0000 | i);
        }
        let mixed = (i ^ 0x9e37_79b9).wrapping_mul(0xd6e8_feb8_6659_fd93);
        Uuid::from_u64_pair(mixed ^ mixed >> 32, mixed.wrapping_mul(0xca5a_8263_9512_1157))
    }

    fn false_hits(filter: &IdFilter, v7: bool) -> u64 {
        (1_000_000_000..1_000_500_000).filter(|i| filter.may_contain(&id(*i, v7))).count() as u64
    }

    #[test]
    fn what_was_inserted_is_found_and_false_hits_stay_below_a_thousandth() {
        for v7 in [false, true] {
            let mut filter = IdFilter::with_capacity(400_000);
            (0..400_000).for_each(|i| filter.insert(&id(i, v7)));
            assert!((0..400_000).all(|i| filter.may_contain(&id(i, v7))));
            assert_eq!(filter.layers.len(), 1);
            assert!(filter.bytes() <= 17 * 400_000 / 8 + 64, "{} bytes", filter.bytes());
            let wrong = false_hits(&filter, v7);
            assert!(wrong <= 500, "{wrong} false hits in 500,000");
        }
    }

    #[test]
    fn growth_keeps_the_rate_until_a_reload_is_wanted() {
        let mut filter = IdFilter::with_capacity(100_000);
        let mut inserted = 0;
        while !filter.wants_reload() {
            filter.insert(&id(inserted, false));
            inserted += 1;
        }
        assert!(inserted > 200_000, "asks for a reload after {inserted} ids");
        assert!((0..inserted).all(|i| filter.may_contain(&id(i, false))));
        let wrong = false_hits(&filter, false);
        assert!(wrong <= 500, "{wrong} false hits in 500,000");
    }

    #[test]
    fn an_empty_filter_contains_nothing() {
        let filter = IdFilter::with_capacity(0);
        assert!(filter.is_empty() && !filter.may_contain(&id(1, false)));
    }
}
