//! How a range is cut into windows. Storage only buckets by what is computed here.

use jiff::civil::Date;
use usage_storage::Windows;

use crate::zones::{OutOfCalendar, Zone};

const MINUTE: i64 = 60_000_000;

/// The length of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WindowSize {
    Minute,
    QuarterHour,
    Hour,
    Day,
    Week,
    Month,
}

impl WindowSize {
    /// Every accepted spelling, in the order in which they are documented.
    pub const NAMES: &'static [(&'static str, WindowSize)] = &[
        ("MINUTE", Self::Minute),
        ("HOUR", Self::Hour),
        ("DAY", Self::Day),
        ("WEEK", Self::Week),
        ("MONTH", Self::Month),
        ("PT1M", Self::Minute),
        ("PT15M", Self::QuarterHour),
        ("PT1H", Self::Hour),
        ("P1D", Self::Day),
        ("P1W", Self::Week),
        ("P1M", Self::Month),
    ];

    pub fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, size)| *size)
    }

    /// Length in microseconds of a window that divides a day; `None` for a day and longer.
    fn width(self) -> Option<i64> {
        match self {
            Self::Minute => Some(MINUTE),
            Self::QuarterHour => Some(15 * MINUTE),
            Self::Hour => Some(60 * MINUTE),
            Self::Day | Self::Week | Self::Month => None,
        }
    }

    /// The first date of the calendar unit that `date` lies in.
    fn first_date(self, date: Date) -> Result<Date, OutOfCalendar> {
        match self {
            Self::Week => {
                let since_monday = i64::from(date.weekday().to_monday_zero_offset());
                date.checked_sub(jiff::Span::new().days(since_monday)).map_err(|_| OutOfCalendar)
            }
            Self::Month => Ok(date.first_of_month()),
            _ => Ok(date),
        }
    }

    /// The first date of the next (`step` = 1) or former (-1) unit.
    fn step(self, first: Date, step: i64) -> Result<Date, OutOfCalendar> {
        let span = match self {
            Self::Week => jiff::Span::new().weeks(step),
            Self::Month => jiff::Span::new().months(step),
            _ => jiff::Span::new().days(step),
        };
        first.checked_add(span).map_err(|_| OutOfCalendar)
    }
}

/// One window [start, end) of the calendar, microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Window {
    pub start: i64,
    pub end: i64,
}

/// The windows that a range [from, to) touches: calendar units, for short windows also the division of each day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    from: i64,
    to: i64,
    /// Bounds of days, weeks or months, strictly ascending; the first is at or before `from`, the last at or after `to`.
    bounds: Vec<i64>,
    /// Set if days are divided.
    width: Option<i64>,
}

impl Grid {
    /// The windows of a non-empty range.
    ///
    /// # Errors
    /// The range touches the edge of the calendar.
    pub fn new(size: WindowSize, zone: &Zone, from: i64, to: i64) -> Result<Self, OutOfCalendar> {
        // Where clocks go back over midnight, an instant's local date may be one that has ended already: start a unit later
        // and walk back to the last one that begins at or before `from`.
        let mut first = size.step(size.first_date(zone.date_of(from)?)?, 1)?;
        while zone.day_start(first)? > from {
            first = size.step(first, -1)?;
        }
        let mut bounds = vec![zone.day_start(first)?];
        while bounds[bounds.len() - 1] < to {
            first = size.step(first, 1)?;
            let start = zone.day_start(first)?;
            // A skipped date has no length.
            if start > bounds[bounds.len() - 1] {
                bounds.push(start);
            }
        }
        Ok(Self { from, to, bounds, width: size.width() })
    }

    /// The window that the instant lies in; the instant lies in the range.
    pub fn window_at(&self, instant: i64) -> Window {
        let unit = self.bounds.partition_point(|bound| *bound <= instant).clamp(1, self.bounds.len() - 1);
        let (start, end) = (self.bounds[unit - 1], self.bounds[unit]);
        match self.width {
            None => Window { start, end },
            Some(width) => {
                let start = start + (instant - start) / width * width;
                Window { start, end: end.min(start + width) }
            }
        }
    }

    /// True if the instant is the start of a window of this range: what a cursor must name.
    pub fn is_start(&self, instant: i64) -> bool {
        instant < self.to
            && self.bounds[0] <= instant
            && self.window_at(instant).end > self.from
            && self.window_at(instant).start == instant
    }

    /// Windows in ascending order, beginning with the one that contains `instant` (at or after `from`'s own).
    pub fn windows_from(&self, instant: i64) -> impl Iterator<Item = Window> + '_ {
        let first = Some(self.window_at(instant.max(self.from)));
        std::iter::successors(first, |window| (window.end < self.to).then(|| self.window_at(window.end)))
    }

    /// All windows in ascending order.
    pub fn windows(&self) -> impl Iterator<Item = Window> + '_ {
        self.windows_from(self.from)
    }

    /// True if the range cuts something off the window.
    pub fn is_partial(&self, window: Window) -> bool {
        window.start < self.from || window.end > self.to
    }

    /// The part [from, to) of the range that begins with the window at `instant` and is at most `windows` long (a day or more
    /// at least), with its windows in storage's terms.
    pub fn part(&self, instant: i64, windows: usize) -> Part {
        let from = self.window_at(instant.max(self.from)).start.max(self.from);
        let windows = i64::try_from(windows).unwrap_or(i64::MAX);
        let first = self.bounds.partition_point(|bound| *bound <= from).max(1) - 1;
        let end = match self.width {
            // Whole days, so that the part ends where a window does.
            Some(width) => {
                let until = from.saturating_add(width.saturating_mul(windows));
                self.bounds.partition_point(|bound| *bound < until).max(first + 1)
            }
            None => first.saturating_add(usize::try_from(windows).unwrap_or(usize::MAX)),
        }
        .min(self.bounds.len() - 1);
        let starts = self.bounds[first..end].to_vec();
        let windows = match self.width {
            None => Windows::Starts(starts),
            Some(width) => Windows::Within { days: starts, width },
        };
        Part { from, to: self.bounds[end].min(self.to), windows }
    }
}

/// How a non-empty range is cut: not at all, or by the calendar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut {
    Total { from: i64, to: i64 },
    Windows(Grid),
}

impl Cut {
    /// The windows of a non-empty range.
    ///
    /// # Errors
    /// The range touches the edge of the calendar.
    pub fn new(size: WindowSize, zone: &Zone, from: i64, to: i64) -> Result<Self, OutOfCalendar> {
        Ok(Self::Windows(Grid::new(size, zone, from, to)?))
    }

    /// The window that an instant of the range lies in.
    pub fn window_at(&self, instant: i64) -> Window {
        match self {
            Self::Total { from, to } => Window { start: *from, end: *to },
            Self::Windows(grid) => grid.window_at(instant),
        }
    }

    /// Windows in ascending order, beginning with the one that contains `instant`.
    pub fn windows_from(&self, instant: i64) -> Box<dyn Iterator<Item = Window> + Send + '_> {
        match self {
            Self::Total { .. } => Box::new(std::iter::once(self.window_at(instant))),
            Self::Windows(grid) => Box::new(grid.windows_from(instant)),
        }
    }

    /// True if the range cuts something off the window.
    pub fn is_partial(&self, window: Window) -> bool {
        match self {
            Self::Total { .. } => false,
            Self::Windows(grid) => grid.is_partial(window),
        }
    }

    /// True if the instant is the start of one of the windows.
    pub fn is_start(&self, instant: i64) -> bool {
        match self {
            Self::Total { from, .. } => instant == *from,
            Self::Windows(grid) => grid.is_start(instant),
        }
    }

    /// See [`Grid::part`].
    pub fn part(&self, instant: i64, windows: usize) -> Part {
        match self {
            Self::Total { from, to } => Part { from: *from, to: *to, windows: Windows::Total },
            Self::Windows(grid) => grid.part(instant, windows),
        }
    }
}

/// A part of a range, for one question to storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub from: i64,
    pub to: i64,
    pub windows: Windows,
}

#[cfg(test)]
#[path = "windows/tests.rs"]
mod tests;
