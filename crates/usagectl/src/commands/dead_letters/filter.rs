//! Which letters a command is about.

use usage_schemas::Reason;

use super::letter::Letter;
use crate::WrongInput;
use crate::arguments::{LetterFilter, Place};

impl LetterFilter {
    /// What clap can't see.
    pub(super) fn check(&self) -> Result<(), WrongInput> {
        match (self.from, self.to) {
            (Some(from), Some(to)) if from >= to => {
                Err(WrongInput { argument: "--to", detail: "must be later than --from".into() })
            }
            _ => Ok(()),
        }
    }

    /// True if it asks for nothing.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// True if letters of this partition may fit.
    pub(super) fn has_partition(&self, partition: i32) -> bool {
        let named =
            self.offsets.iter().any(|offsets| offsets.partition.is_none_or(|found| found == partition));
        any(&self.partition, |wanted| *wanted == partition) && (self.offsets.is_empty() || named)
    }

    pub(super) fn fits(&self, letter: &Letter) -> bool {
        let Place { partition, offset } = letter.message.place;
        let at = letter.origin.timestamp.saturating_mul(1_000);
        let is = |claim: &Option<String>, wanted: &String| claim.as_ref() == Some(wanted);
        any(&self.reason, |wanted| Reason::parse(&letter.reason) == Some(*wanted))
            && any(&self.tenant, |wanted| letter.claims.tenant == Some(*wanted))
            && any(&self.source, |wanted| is(&letter.claims.source, wanted))
            && any(&self.metric, |wanted| is(&letter.claims.metric, wanted))
            && any(&self.partition, |wanted| *wanted == partition)
            && any(&self.offsets, |wanted| {
                wanted.partition.is_none_or(|found| found == partition)
                    && (wanted.from..wanted.to).contains(&offset)
            })
            && self.from.is_none_or(|from| from <= at)
            && self.to.is_none_or(|to| at < to)
    }
}

/// No wish is always fulfilled.
fn any<T>(wishes: &[T], fulfilled: impl Fn(&T) -> bool) -> bool {
    wishes.is_empty() || wishes.iter().any(fulfilled)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::commands::dead_letters::testing::letter;

    const TENANT: Uuid = Uuid::from_u128(7);

    fn filter(change: impl FnOnce(&mut LetterFilter)) -> LetterFilter {
        let mut filter = LetterFilter::default();
        change(&mut filter);
        filter
    }

    #[test]
    fn each_filter_chooses_and_all_must_fit() {
        let mut letter = letter(3, 17);
        letter.reason = "conflict".into();
        letter.origin.timestamp = 1_700_000_000_500;
        letter.claims.tenant = Some(TENANT);
        letter.claims.source = Some("llm-gateway".into());
        letter.claims.metric = Some("llm.tokens".into());
        let micros = 1_700_000_000_500_000;
        let fitting: Vec<LetterFilter> = vec![
            LetterFilter::default(),
            filter(|f| f.reason = vec![Reason::TooOld, Reason::Conflict]),
            filter(|f| f.tenant = vec![TENANT]),
            filter(|f| f.source = vec!["mail".into(), "llm-gateway".into()]),
            filter(|f| f.metric = vec!["llm.tokens".into()]),
            filter(|f| f.from = Some(micros)),
            filter(|f| f.to = Some(micros + 1)),
            filter(|f| f.partition = vec![1, 3]),
            filter(|f| f.offsets = vec!["3:17..18".parse().unwrap()]),
            filter(|f| f.offsets = vec!["3:0..5".parse().unwrap(), "17..".parse().unwrap()]),
        ];
        let strange: Vec<LetterFilter> = vec![
            filter(|f| f.reason = vec![Reason::TooOld]),
            filter(|f| f.tenant = vec![Uuid::from_u128(8)]),
            filter(|f| f.source = vec!["mail".into()]),
            filter(|f| f.metric = vec!["llm".into()]),
            filter(|f| f.from = Some(micros + 1)),
            filter(|f| f.to = Some(micros)),
            filter(|f| f.partition = vec![1]),
            filter(|f| f.offsets = vec!["3:0..17".parse().unwrap()]),
            filter(|f| f.offsets = vec!["4:17..18".parse().unwrap()]),
            filter(|f| (f.partition, f.reason) = (vec![3], vec![Reason::TooOld])),
        ];
        for fits in fitting {
            assert!(fits.fits(&letter), "{fits:?}");
        }
        for other in strange {
            assert!(!other.fits(&letter), "{other:?}");
        }
    }

    #[test]
    fn a_letter_that_says_nothing_of_itself_fits_no_such_filter() {
        let letter = letter(0, 0);
        assert!(!filter(|f| f.metric = vec!["llm.tokens".into()]).fits(&letter));
        assert!(!filter(|f| f.tenant = vec![TENANT]).fits(&letter));
    }

    #[test]
    fn only_partitions_that_may_hold_letters_are_read() {
        let filter = filter(|f| {
            f.partition = vec![1, 2];
            f.offsets = vec!["2:0..5".parse().unwrap(), "3:0..5".parse().unwrap()];
        });
        assert_eq!([1, 2, 3].map(|partition| filter.has_partition(partition)), [false, true, false]);
        assert!(LetterFilter::default().has_partition(9));
    }

    #[test]
    fn an_empty_time_range_is_a_mistake() {
        assert!(filter(|f| (f.from, f.to) = (Some(5), Some(5))).check().is_err());
        assert!(filter(|f| (f.from, f.to) = (Some(5), Some(6))).check().is_ok());
    }
}
