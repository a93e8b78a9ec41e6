//! "Did you mean …": a kindness to people who mistype, at a price that is bounded whatever is sent.

/// A longer text is no slip of the pen: nothing is guessed.
pub const LONGEST: usize = 64;

/// Most steps (pairs of characters compared) that one hint may take; less than 10 ms.
const STEPS: usize = 300_000;

/// The one of `known` that `text` most probably means; `None` if the text is too long or nothing is known.
pub fn nearest<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    closest(text, known.into_iter().map(|known| Spelling { text: known, penalty: 0, means: known }))
}

/// One way to write something.
pub struct Spelling<'a> {
    pub text: &'a str,
    /// Added to the distance.
    pub penalty: usize,
    pub means: &'a str,
}

/// What the spelling closest to `text` means, in any case; see [`nearest`].
pub fn closest<'a>(text: &str, spellings: impl IntoIterator<Item = Spelling<'a>>) -> Option<&'a str> {
    if text.len() > LONGEST {
        return None;
    }
    search(text, spellings).0
}

/// The meaning and the steps it took to find it.
fn search<'a>(text: &str, spellings: impl IntoIterator<Item = Spelling<'a>>) -> (Option<&'a str>, usize) {
    let wanted = text.to_lowercase();
    let length = wanted.chars().count();
    // No distance is less than the difference of the lengths: the likeliest come first, and most need not be compared.
    let mut spellings: Vec<(usize, Spelling<'a>)> = spellings
        .into_iter()
        .map(|spelling| (spelling.text.chars().count().abs_diff(length) + spelling.penalty, spelling))
        .collect();
    spellings.sort_by_key(|(least, _)| *least);
    let mut steps = 0;
    let mut best: Option<(usize, &'a str)> = None;
    for (least, spelling) in spellings {
        let cost = length * spelling.text.len();
        if best.is_some_and(|(distance, _)| least >= distance) || (best.is_some() && steps + cost > STEPS) {
            break;
        }
        steps += cost;
        let distance = strsim::damerau_levenshtein(&spelling.text.to_ascii_lowercase(), &wanted);
        if best.is_none_or(|(least, _)| distance + spelling.penalty < least) {
            best = Some((distance + spelling.penalty, spelling.means));
        }
    }
    (best.map(|(_, means)| means), steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_found_in_any_case() {
        assert_eq!(nearest("Mertic", ["from", "METRIC", "meter"]), Some("METRIC"));
        assert_eq!(nearest("a", []), None);
    }

    #[test]
    fn a_long_text_is_given_no_hint() {
        let long = "a".repeat(LONGEST);
        assert_eq!(nearest(&long, ["b"]), Some("b"));
        assert_eq!(nearest(&format!("{long}a"), ["b"]), None);
        // Bytes count, not characters.
        assert_eq!(nearest(&"é".repeat(LONGEST / 2 + 1), ["b"]), None);
    }

    #[test]
    fn the_steps_are_bounded_however_much_is_known() {
        // As unlike one another as names can be, so that no length decides.
        let known: Vec<String> = (0..20_000).map(|at| format!("{at:0>64}")).collect();
        let spellings = known.iter().map(|known| Spelling { text: known, penalty: 0, means: known });
        let (found, steps) = search(&"x".repeat(LONGEST), spellings);
        assert!(found.is_some() && steps <= STEPS, "{steps}");
    }

    #[test]
    fn what_can_not_be_nearer_is_not_compared() {
        let long = "z".repeat(100);
        let spellings = ["token", &long].map(|known| Spelling { text: known, penalty: 0, means: known });
        assert_eq!(search("tokens", spellings), (Some("token"), 30));
    }
}
