//! Which delivered rows of a batch are not kept and why, packed into the few thousand characters that a commit has room for.
//!
//! Text: runs, then at most one bitmap. A run is `gap letter len`: `gap` offsets are passed over since the end of the run
//! before (left out if 0), then `len` offsets share the reason `letter` (left out if 1, else ended by a point). Numbers are
//! base 36 in lower case, letters upper case. The bitmap, `/letter` and six offsets a character from the batch's first one,
//! serves reasons that alternate with kept rows. Offsets that were never delivered (control records) may lie inside a run:
//! they are never delivered in a rebuild either.

use usage_schemas::Reason;

/// Why a delivered row is not in the batch's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NotKept {
    /// The same identity with the same content is kept already.
    Duplicate,
    /// A completeness marker.
    Marker,
    /// Produced again onto the partition it belongs to.
    Forwarded,
    /// A dead letter.
    Refused(Reason),
}

const LETTERS: [(NotKept, u8); 19] = [
    (NotKept::Duplicate, b'D'),
    (NotKept::Marker, b'M'),
    (NotKept::Forwarded, b'F'),
    (NotKept::Refused(Reason::Undecodable), b'U'),
    (NotKept::Refused(Reason::UnknownSchema), b'H'),
    (NotKept::Refused(Reason::BadSignature), b'S'),
    (NotKept::Refused(Reason::UnknownSource), b'O'),
    (NotKept::Refused(Reason::WrongPartition), b'W'),
    (NotKept::Refused(Reason::IdMismatch), b'I'),
    (NotKept::Refused(Reason::InvalidRecord), b'V'),
    (NotKept::Refused(Reason::MetadataTooLarge), b'L'),
    (NotKept::Refused(Reason::InFuture), b'E'),
    (NotKept::Refused(Reason::TooOld), b'T'),
    (NotKept::Refused(Reason::UnknownUsageType), b'Y'),
    (NotKept::Refused(Reason::SchemaViolation), b'X'),
    (NotKept::Refused(Reason::Conflict), b'C'),
    (NotKept::Refused(Reason::ForbiddenTenant), b'B'),
    (NotKept::Refused(Reason::QuotaExceeded), b'Q'),
    (NotKept::Refused(Reason::StorageRefused), b'R'),
];

impl NotKept {
    fn index(self) -> usize {
        LETTERS.iter().position(|(why, _)| *why == self).expect("every reason has a letter")
    }

    fn letter(self) -> char {
        char::from(LETTERS[self.index()].1)
    }

    fn from_letter(letter: u8) -> Option<Self> {
        LETTERS.iter().find(|(_, l)| *l == letter).map(|(why, _)| *why)
    }

    /// The word in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Marker => "marker",
            Self::Forwarded => "forwarded",
            Self::Refused(reason) => reason.as_str(),
        }
    }
}

/// `len` offsets from `start` on, none of them kept, all for the same reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub start: i64,
    pub len: i64,
    pub why: NotKept,
}

impl Run {
    fn end(&self) -> i64 {
        self.start + self.len
    }
}

/// Ascending runs that do not overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs(Vec<Run>);

impl Runs {
    /// Joins single decisions, ascending by offset, into runs; `kept` holds the kept offsets, ascending. Two decisions share a
    /// run if they have the same reason and no kept row lies between them.
    pub fn join(not_kept: impl IntoIterator<Item = (i64, NotKept)>, kept: &[i64]) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        let mut next_kept = 0;
        for (offset, why) in not_kept {
            while kept.get(next_kept).is_some_and(|k| *k < offset) {
                next_kept += 1;
            }
            let kept_before = next_kept.checked_sub(1).map(|i| kept[i]);
            match runs.last_mut() {
                Some(run) if run.why == why && kept_before.is_none_or(|k| k < run.end()) => {
                    run.len = offset - run.start + 1;
                }
                _ => runs.push(Run { start: offset, len: 1, why }),
            }
        }
        Self(runs)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Run> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The reason for `offset`, if it is not kept.
    pub fn get(&self, offset: i64) -> Option<NotKept> {
        let after = self.0.partition_point(|run| run.start <= offset);
        let run = self.0.get(after.checked_sub(1)?)?;
        (offset < run.end()).then_some(run.why)
    }

    /// Adds offsets that were kept until now, all for the same reason.
    pub fn with(&self, offsets: &[i64], why: NotKept) -> Self {
        let mut runs = self.0.clone();
        for offset in offsets.iter().filter(|o| self.get(**o).is_none()) {
            runs.push(Run { start: *offset, len: 1, why });
        }
        runs.sort_unstable_by_key(|run| run.start);
        let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
        for run in runs {
            match joined.last_mut() {
                Some(last) if last.why == run.why && last.end() == run.start => last.len += run.len,
                _ => joined.push(run),
            }
        }
        Self(joined)
    }

    /// The shortest packing for a batch that begins at `first`.
    pub fn pack(&self, first: i64) -> String {
        let mut best = pack_runs(&self.0, first);
        if best.len() < READABLE {
            return best;
        }
        for (why, letter) in LETTERS {
            let Some(last) = self.0.iter().rfind(|run| run.why == why) else { continue };
            if usize::try_from((last.end() - first) / 6).unwrap_or(usize::MAX) >= best.len() {
                continue;
            }
            let (mapped, rest): (Vec<Run>, Vec<Run>) = self.0.iter().partition(|run| run.why == why);
            let mut with_map = pack_runs(&rest, first);
            with_map.push('/');
            with_map.push(char::from(letter));
            pack_bitmap(&mapped, first, &mut with_map);
            if with_map.len() < best.len() {
                best = with_map;
            }
        }
        best
    }

    /// Reads what `pack` wrote; every offset must lie in `first..=last`.
    pub fn unpack(text: &str, first: i64, last: i64) -> Result<Self, &'static str> {
        let (runs_text, bitmap) = match text.split_once('/') {
            Some((runs, bitmap)) => (runs, Some(bitmap)),
            None => (text, None),
        };
        let mut runs = unpack_runs(runs_text.as_bytes(), first, last)?;
        if let Some(bitmap) = bitmap {
            runs.extend(unpack_bitmap(bitmap.as_bytes(), first, last)?);
            runs.sort_unstable_by_key(|run| run.start);
            if runs.windows(2).any(|pair| pair[0].end() > pair[1].start) {
                return Err("runs and bitmap overlap");
            }
        }
        Ok(Self(runs))
    }
}

/// Runs that take less than this stay runs, which people can read.
const READABLE: usize = 64;

const BASE36: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn digits(mut n: i64) -> usize {
    let mut count = 1;
    while n >= 36 {
        n /= 36;
        count += 1;
    }
    count
}

fn push_number(mut n: i64, out: &mut String) {
    let at = out.len();
    loop {
        out.insert(at, char::from(BASE36[usize::try_from(n % 36).expect("lengths are not negative")]));
        n /= 36;
        if n == 0 {
            return;
        }
    }
}

/// Characters that one run takes, after a gap.
fn run_cost(gap: i64, len: i64) -> usize {
    let gap = if gap == 0 { 0 } else { digits(gap) };
    gap + 1 + if len == 1 { 0 } else { digits(len) + 1 }
}

fn pack_runs(runs: &[Run], first: i64) -> String {
    let mut out = String::new();
    let mut at = first;
    for run in runs {
        if run.start > at {
            push_number(run.start - at, &mut out);
        }
        out.push(run.why.letter());
        if run.len > 1 {
            push_number(run.len, &mut out);
            out.push('.');
        }
        at = run.end();
    }
    out
}

fn pack_bitmap(runs: &[Run], first: i64, out: &mut String) {
    let Some(last) = runs.last() else { return };
    let chars =
        usize::try_from((last.end() - first + 5) / 6).expect("runs lie behind the batch's first offset");
    let mut sextets = vec![0u8; chars];
    for run in runs {
        for bit in run.start - first..run.end() - first {
            let bit = usize::try_from(bit).expect("runs lie behind the batch's first offset");
            sextets[bit / 6] |= 1 << (bit % 6);
        }
    }
    out.extend(sextets.iter().map(|sextet| char::from(BASE64[usize::from(*sextet)])));
}

fn unpack_runs(mut text: &[u8], first: i64, last: i64) -> Result<Vec<Run>, &'static str> {
    let mut runs = Vec::new();
    let mut at = first;
    while !text.is_empty() {
        let (gap, rest) = take_number(text)?;
        let (letter, rest) = rest.split_first().ok_or("a run without a reason")?;
        let why = NotKept::from_letter(*letter).ok_or("an unknown reason")?;
        // A number behind the letter is a length if a point ends it, else the next run's gap.
        let (len, after) = take_number(rest)?;
        let (len, rest) = match (len, after.split_first()) {
            (Some(len), Some((b'.', after))) => (len, after),
            _ => (1, rest),
        };
        if gap == Some(0) || (len < 1) {
            return Err("a number that is left out when it is the default");
        }
        let start = at.checked_add(gap.unwrap_or(0)).ok_or("a run behind the last offset")?;
        at = start.checked_add(len).ok_or("a run behind the last offset")?;
        if at > last.saturating_add(1) {
            return Err("a run behind the last offset");
        }
        runs.push(Run { start, len, why });
        text = rest;
    }
    Ok(runs)
}

/// A base-36 number at the front, if there is one, and what follows.
fn take_number(text: &[u8]) -> Result<(Option<i64>, &[u8]), &'static str> {
    let len = text.iter().take_while(|c| c.is_ascii_digit() || c.is_ascii_lowercase()).count();
    if len == 0 {
        return Ok((None, text));
    }
    let (number, rest) = text.split_at(len);
    let mut value = 0i64;
    for digit in number {
        let digit = BASE36.iter().position(|c| c == digit).ok_or("not a number")?;
        let digit = i64::try_from(digit).map_err(|_| "not a number")?;
        value = value.checked_mul(36).and_then(|v| v.checked_add(digit)).ok_or("a number out of range")?;
    }
    Ok((Some(value), rest))
}

fn unpack_bitmap(text: &[u8], first: i64, last: i64) -> Result<Vec<Run>, &'static str> {
    let (letter, sextets) = text.split_first().ok_or("a bitmap without a reason")?;
    let why = NotKept::from_letter(*letter).ok_or("an unknown reason")?;
    let mut runs: Vec<Run> = Vec::new();
    let mut offset = first;
    for sextet in sextets {
        let bits = BASE64.iter().position(|c| c == sextet).ok_or("not a bitmap")?;
        for bit in 0..6 {
            if bits >> bit & 1 == 1 {
                if offset > last {
                    return Err("a bit behind the last offset");
                }
                match runs.last_mut() {
                    Some(run) if run.end() == offset => run.len += 1,
                    _ => runs.push(Run { start: offset, len: 1, why }),
                }
            }
            offset += 1;
        }
    }
    Ok(runs)
}

/// Follows the packed size while a batch grows, so that the batch ends before its plan is too long.
#[derive(Debug, Clone, Default)]
pub struct PackedSize {
    first: Option<i64>,
    /// Characters that all runs take, and those of each reason with their number.
    total: usize,
    by_reason: [(usize, usize); LETTERS.len()],
    /// The last run and the end of the one before, while the last delivered row belongs to it.
    open: Option<(Run, i64)>,
    /// End of the last run.
    end: i64,
}

impl PackedSize {
    /// A row was delivered at `offset`; `why` is `None` if it is kept.
    pub fn push(&mut self, offset: i64, why: Option<NotKept>) {
        let first = *self.first.get_or_insert(offset);
        let Some(why) = why else {
            self.open = None;
            return;
        };
        let (cost, runs) = &mut self.by_reason[why.index()];
        let before = if self.total == 0 { first } else { self.end };
        let (run, previous_end, old_cost) = match self.open.take() {
            Some((run, previous_end)) if run.why == why => (
                Run { len: offset - run.start + 1, ..run },
                previous_end,
                run_cost(run.start - previous_end, run.len),
            ),
            _ => {
                *runs += 1;
                (Run { start: offset, len: 1, why }, before, 0)
            }
        };
        let more = run_cost(run.start - previous_end, run.len) - old_cost;
        *cost += more;
        self.total += more;
        self.end = run.end();
        self.open = Some((run, previous_end));
    }

    /// True if what was pushed may take `limit` characters or more; cheap while it takes less in the plainest packing.
    pub fn exceeds(&self, limit: usize) -> bool {
        self.total >= limit && self.bound() >= limit
    }

    /// An upper bound of the packed length of what was pushed.
    pub fn bound(&self) -> usize {
        let Some(first) = self.first else { return 0 };
        // Runs that stay beside a bitmap may get a longer gap than they have now.
        let longest_gap = digits(self.end.saturating_sub(first).max(0));
        let (cost, runs) = self.by_reason.iter().copied().max().unwrap_or_default();
        let all_runs: usize = self.by_reason.iter().map(|(_, runs)| runs).sum();
        let rest = (self.total - cost) + (all_runs - runs) * longest_gap;
        let map = usize::try_from(self.end.saturating_sub(first) / 6).unwrap_or(usize::MAX).saturating_add(3);
        if self.total < READABLE { self.total } else { self.total.min(map.saturating_add(rest)) }
    }
}
