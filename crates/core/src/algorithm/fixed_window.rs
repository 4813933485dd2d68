//! Fixed window: a count that restarts with each window.

use core::{num::NonZeroU64, time::Duration};

use super::{Algorithm, StoredState, gcra::MAX_SPAN, never_fits};
use crate::spec::{AlgorithmEntry, AlgorithmSpec, Amount, Known, Value, Wants};
use crate::{
    Calendar, Debt, Decision, MAX_LIMIT, MOST_USED, Nanos, Parameters, Period, PolicyError, Quota,
    QuotaError, Share, Standing,
};

/// The registry entry.
pub(super) const ENTRY: AlgorithmEntry = AlgorithmEntry {
    name: "fixed-window",
    aliases: &[],
    options: &[
        Known::new("first_hit", Wants::Flag),
        Known::new("burst", Wants::count(0, MAX_LIMIT)),
        Known::new("oversize_wait", Wants::Span),
        #[cfg(feature = "calendar")]
        Known::new("calendar", Wants::Switch),
        #[cfg(feature = "calendar")]
        Known::new("time_zone", Wants::Zone),
        #[cfg(feature = "calendar")]
        Known::new("starts", Wants::count(1, 31)),
    ],
    limits_rate: true,
    build: |spec, amount| {
        let quota = amount.quota()?;
        let windows = FixedWindow::new(quota);
        let burst = spec.count("burst");
        let wait = spec.span("oversize_wait");
        if wait.is_some() && burst.is_none() {
            return Err(PolicyError::Oversize(
                "oversize_wait needs `burst`: other windows forget at their end what is owed. Set burst to the limit, or more",
            ));
        }
        if let Some(calendar) = calendar(spec, quota.window_nanos())? {
            return if burst.is_some() {
                Err(PolicyError::Calendar(
                    "the windows of a calendar save nothing: remove burst, or write days as 1d and `calendar: false`",
                ))
            } else {
                Ok(windows.on_calendar(calendar).into())
            };
        }
        let windows = if spec.flag("first_hit") {
            windows.first_hit()
        } else {
            windows
        };
        let windows = burst.map_or(Ok(windows), |burst| windows.burst(burst))?;
        Ok(wait
            .map_or(Ok(windows), |wait| windows.oversize_wait(wait))?
            .into())
    },
};

/// Whether windows of this length mean the calendar if nothing else is said.
fn is_uneven(window: u64) -> bool {
    Period::ALL
        .iter()
        .any(|period| period.is_uneven() && period.mean() == window)
}

/// The calendar that the windows follow: if the options say so, and for months and years.
#[cfg(feature = "calendar")]
fn calendar(spec: &AlgorithmSpec, window: u64) -> Result<Option<&'static Calendar>, PolicyError> {
    let zone = if let Some(Value::Word(zone)) = spec.get("time_zone") {
        Some(zone)
    } else {
        None
    };
    let starts = spec.count("starts");
    let (has_options, first_hit) = (zone.is_some() || starts.is_some(), spec.flag("first_hit"));
    let follows = match spec.get("calendar") {
        Some(value) => value == Value::Flag(true),
        None => has_options || !first_hit && is_uneven(window),
    };
    match (follows, Period::of(window)) {
        (false, _) if has_options => Err(PolicyError::Calendar(
            "time_zone and starts need `calendar: true`",
        )),
        (false, _) => Ok(None),
        (true, _) if first_hit => Err(PolicyError::Calendar(
            "a window begins with the calendar or with the first request, not both",
        )),
        (true, None) => Err(PolicyError::Calendar(
            "a calendar has days, weeks, months and years; write the limit as in 1000/month",
        )),
        (true, Some(period)) => {
            let starts = u8::try_from(starts.unwrap_or(1)).unwrap_or(0);
            Calendar::new(period, zone.unwrap_or("UTC"), starts).map(Some)
        }
    }
}

#[cfg(not(feature = "calendar"))]
fn calendar(spec: &AlgorithmSpec, window: u64) -> Result<Option<&'static Calendar>, PolicyError> {
    if is_uneven(window) && !spec.flag("first_hit") {
        return Err(PolicyError::Calendar(
            "fixed windows of months and years need the feature `calendar`",
        ));
    }
    Ok(None)
}

/// `limit` units in each window. Windows are aligned to the clock's origin, or each begins at its
/// first admitted request, or they are the periods of a [`Calendar`].
///
/// Bound: `2 × limit` in any window's length (the end of one window and the start of the next).
/// State: the window's start, the count.
///
/// With a [`burst`](Self::burst), what earlier windows leave is saved up to the burst: a bucket of
/// that many tokens, which gets `limit` tokens in one lump when a window ends. Bound: `burst +
/// limit` in any window's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    limit: u64,
    window: u64,
    begins: Begins,
    /// One more than can be used at once, if windows save what is left.
    above_burst: Option<NonZeroU64>,
    /// The longest wait of a cost above the burst, in nanoseconds; 0 if such costs are denied.
    oversize_wait: u64,
}

/// When a window begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Begins {
    /// At a multiple of its length.
    Aligned,
    FirstHit,
    /// The states and all that is compared with them are times of the system's clock, which is this
    /// far ahead of the limiter's: a window keeps its name when the distance changes.
    Calendar(&'static Calendar, i64),
}

impl FixedWindow {
    /// Aligned windows. A month or a year has its mean length; see
    /// [`on_calendar`](Self::on_calendar).
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self {
            limit: quota.limit(),
            window: quota.window_nanos(),
            begins: Begins::Aligned,
            above_burst: None,
            oversize_wait: 0,
        }
    }

    /// Windows that are the periods of a calendar, whatever the quota's window is. With the feature
    /// `calendar`, `Calendar::new` makes one.
    #[must_use]
    pub const fn on_calendar(self, calendar: &'static Calendar) -> Self {
        Self {
            limit: self.limit,
            window: calendar.period().mean(),
            begins: Begins::Calendar(calendar, 0),
            above_burst: None,
            oversize_wait: 0,
        }
    }

    /// Saves what windows leave, up to `burst` units: each window's end gives back `limit` of the
    /// units in use. A key that has used nothing may use the whole burst. Windows on a calendar
    /// save nothing, and a limit of 0 denies everything.
    ///
    /// # Errors
    /// [`PolicyError::BurstTooLong`] if it takes more than 73 years until a used-up burst is back,
    /// or if the burst is above [`MAX_LIMIT`].
    pub fn burst(self, burst: u64) -> Result<Self, PolicyError> {
        if burst > MAX_LIMIT {
            return Err(PolicyError::Quota(QuotaError::LimitTooHigh));
        }
        if matches!(self.begins, Begins::Calendar(..)) {
            return Ok(self);
        }
        let burst = if self.limit == 0 { 0 } else { burst };
        if burst.div_ceil(self.lump()).saturating_mul(self.window) > MAX_SPAN {
            return Err(PolicyError::BurstTooLong);
        }
        Ok(Self {
            above_burst: NonZeroU64::new(burst + 1),
            ..self
        })
    }

    /// Admits a cost above the [`burst`](Self::burst) when nothing is in use: it starts when the
    /// windows have given back the rest of it, and that much is owed until then. A cost for which
    /// they need longer than `wait`, counted in whole windows, never fits.
    ///
    /// # Errors
    /// [`PolicyError::Oversize`] without a burst, for a `wait` shorter than the window, and for one
    /// above 36 years.
    pub fn oversize_wait(self, wait: Duration) -> Result<Self, PolicyError> {
        let wait = Nanos::from(wait).get();
        let refused = if self.saved().is_none() {
            "oversize_wait needs a burst"
        } else if wait < self.window {
            "oversize_wait is shorter than the window, whose end gives units back; raise it"
        } else if wait > MAX_SPAN / 2 {
            "oversize_wait is above 36 years; lower it"
        } else {
            return Ok(Self {
                oversize_wait: wait,
                ..self
            });
        };
        Err(PolicyError::Oversize(refused))
    }

    /// The highest cost that can ever be admitted.
    pub(crate) fn most(&self) -> u64 {
        let capacity = self.capacity();
        if capacity == 0 {
            return 0;
        }
        let later = (self.oversize_wait / self.window).saturating_mul(self.lump());
        capacity.saturating_add(later).min(MAX_LIMIT)
    }

    pub(crate) const fn waits_for_oversize(&self) -> bool {
        self.oversize_wait > 0
    }

    /// The most that can be used at once, if windows save what is left.
    #[inline]
    const fn saved(&self) -> Option<u64> {
        match self.above_burst {
            Some(above) => Some(above.get() - 1),
            None => None,
        }
    }

    /// The highest cost that is admitted without a delay.
    #[inline]
    fn capacity(&self) -> u64 {
        self.saved().unwrap_or(self.limit)
    }

    /// The start of the window of `now`, and the count there, if windows save what is left.
    fn settled(&self, state: &[u64], now: Nanos) -> (u64, u64) {
        let (start, count) = (state[0], state[1]);
        let passed = now.get().saturating_sub(start) / self.window;
        let count = count.saturating_sub(passed.saturating_mul(self.lump()));
        (start + passed * self.window, count)
    }

    /// How long it takes until `units` are given back, if the window ends in `left`.
    #[inline]
    fn until_back(&self, units: u64, left: u64) -> u64 {
        match (units, self.saved()) {
            (0, _) => 0,
            (_, None) => left,
            _ => {
                let further = units.div_ceil(self.lump()) - 1;
                left.saturating_add(further.saturating_mul(self.window))
                    .min(Nanos::MAX.get())
            }
        }
    }

    /// A window starts at the first admitted request and ends a window's length later.
    #[must_use]
    pub const fn first_hit(self) -> Self {
        Self {
            begins: Begins::FirstHit,
            ..self
        }
    }

    /// With windows on a calendar, says how far the system's time is ahead of the limiter's clock.
    #[must_use]
    pub(crate) const fn with_wall_ahead(self, ahead: i64) -> Self {
        match self.begins {
            Begins::Calendar(calendar, _) => Self {
                begins: Begins::Calendar(calendar, ahead),
                ..self
            },
            _ => self,
        }
    }

    /// How far the system's time is ahead of the limiter's clock, as far as the windows depend on
    /// it.
    pub(crate) const fn wall_ahead(&self) -> i64 {
        match self.begins {
            Begins::Calendar(_, ahead) => ahead,
            _ => 0,
        }
    }

    /// The time on which the windows are based.
    #[inline]
    fn wall(&self, now: Nanos) -> u64 {
        match self.begins {
            Begins::Calendar(_, ahead) => {
                now.get().saturating_add_signed(ahead).min(Nanos::MAX.get())
            }
            _ => now.get(),
        }
    }

    pub(crate) fn same_windows(&self, other: &Self) -> bool {
        self.with_wall_ahead(0).begins == other.with_wall_ahead(0).begins
            && self.window == other.window
            && match (self.saved(), other.saved()) {
                (None, None) => true,
                (Some(_), Some(_)) => self.lump() == other.lump(),
                _ => false,
            }
    }

    /// What a window's end gives back if windows save what is left. Charges of a limit of 0 must
    /// end, too.
    #[inline]
    fn lump(&self) -> u64 {
        self.limit.max(1)
    }

    #[inline]
    const fn is_first_hit(&self) -> bool {
        matches!(self.begins, Begins::FirstHit)
    }

    /// The start of a window that begins with a unit taken at this [time](Self::wall).
    #[inline]
    fn start(&self, wall: u64) -> u64 {
        match self.begins {
            Begins::Aligned => wall - wall % self.window,
            Begins::FirstHit => wall,
            Begins::Calendar(calendar, _) => calendar.start(wall),
        }
    }

    /// The end of the window that began at `start`.
    #[inline]
    fn end(&self, start: u64) -> u64 {
        match self.begins {
            Begins::Calendar(calendar, _) => calendar.end(start),
            _ => start + self.window,
        }
    }

    /// How much of the window that contains `now` is left: units taken now count in that window
    /// alone. Zero if windows begin with the first hit and none has begun, because a window must
    /// begin with a unit that is used at once.
    pub(crate) fn window_left(&self, state: &[u64], now: Nanos) -> u64 {
        let (count, left) = self.current(state, now);
        if self.is_first_hit() && count == 0 {
            0
        } else {
            left
        }
    }

    /// Returns units that were taken at `taken`, unless that window has ended. If windows save what
    /// is left, less what they have given back since.
    pub(crate) fn give_back(&self, state: &mut [u64], now: Nanos, taken: Nanos, cost: u64) {
        if self.saved().is_some() {
            let (start, _) = self.settled(state, now);
            let ended = start.saturating_sub(taken.get()).div_ceil(self.window);
            self.refund(
                state,
                now,
                cost.saturating_sub(ended.saturating_mul(self.lump())),
            );
        } else if self.wall(taken) >= state[0] {
            self.refund(state, now, cost);
        }
    }

    /// Records in `new`, a fresh state, that `used` units were taken at `now`.
    pub(crate) fn keep(&self, new: &mut [u64], now: Nanos, used: u64) {
        new[0] = self.start(self.wall(now));
        new[1] = used.min(MOST_USED);
    }

    /// The count at `now`, and how long it stays valid.
    #[inline]
    fn current(&self, state: &[u64], now: Nanos) -> (u64, u64) {
        if self.saved().is_some() {
            let (start, count) = self.settled(state, now);
            let start = if count == 0 {
                self.start(now.get())
            } else {
                start
            };
            return (count, start + self.window - now.get());
        }
        let (start, count) = (state[0], state[1]);
        let (wall, end) = (self.wall(now), self.end(start));
        if wall >= end || (self.is_first_hit() && count == 0) {
            (0, self.end(self.start(wall)) - wall)
        } else {
            (count, end - wall)
        }
    }

    /// Begins the window of `now` if nothing counts yet, or if the count is now that of this window.
    #[inline]
    fn begin(&self, state: &mut [u64], now: Nanos, count: u64) {
        if count > 0 && self.saved().is_some() {
            state[0] = self.settled(state, now).0;
        } else if count == 0 {
            // If the clock went back, the newest window remains current.
            state[0] = state[0].max(self.start(self.wall(now)));
        }
    }

    pub(crate) fn written(&self) -> (AlgorithmSpec, Amount) {
        let wait = Duration::from_nanos(self.oversize_wait);
        let spec = AlgorithmSpec::of(&ENTRY)
            .with("burst", self.saved().map(Value::Count))
            .with(
                "oversize_wait",
                (!wait.is_zero()).then_some(Value::Span(wait)),
            );
        let spec = match self.begins {
            Begins::Aligned => spec.with(
                "calendar",
                is_uneven(self.window).then_some(Value::Flag(false)),
            ),
            Begins::FirstHit => spec.with("first_hit", Some(Value::Flag(true))),
            Begins::Calendar(calendar, _) => {
                let (zone, starts) = (calendar.zone(), calendar.starts());
                spec.with(
                    "calendar",
                    (!calendar.period().is_uneven()).then_some(Value::Flag(true)),
                )
                .with("time_zone", (zone != "UTC").then_some(Value::Word(zone)))
                .with(
                    "starts",
                    (starts > 1).then_some(Value::Count(starts.into())),
                )
            }
        };
        (spec, Amount::Quota(Quota::of(self.limit, self.window)))
    }

    pub(crate) const fn parameters(&self) -> Parameters {
        let Self {
            limit,
            window,
            begins,
            oversize_wait,
            ..
        } = *self;
        match (begins, self.saved()) {
            (Begins::Calendar(calendar, _), _) => Parameters::CalendarWindow { limit, calendar },
            (_, Some(burst)) => Parameters::SavingWindow {
                limit,
                window,
                first_hit: self.is_first_hit(),
                burst,
                oversize_wait,
            },
            _ => Parameters::FixedWindow {
                limit,
                window,
                first_hit: self.is_first_hit(),
            },
        }
    }
}

impl Algorithm for FixedWindow {
    fn words(&self) -> usize {
        2
    }

    #[inline]
    fn limit(&self) -> u64 {
        self.capacity()
    }

    #[inline]
    fn peek(&self, state: &[u64], now: Nanos, cost: u64) -> Decision {
        let (count, left) = self.current(state, now);
        let limit = self.capacity();
        let room = limit.saturating_sub(count);
        let reset = |count: u64| self.until_back(count, left);
        let standing = |room, reset_after| Standing {
            limit,
            room,
            unit: 1,
            reset_after,
        };
        if cost > limit && cost <= self.most() {
            let wait = self.until_back(count, left);
            if count > 0 {
                Decision::deny(standing(room, wait), wait)
            } else {
                Decision::delayed(
                    standing(0, reset(cost)),
                    self.until_back(cost - limit, left),
                )
            }
        } else if cost > limit {
            never_fits(limit, room, reset(count))
        } else if count + cost <= limit {
            Decision::allow(standing(room - cost, reset(count + cost)))
        } else {
            let wait = self.until_back(count + cost - limit, left);
            Decision::deny(standing(room, reset(count)), wait)
        }
    }

    #[inline]
    fn record(&self, state: &mut [u64], now: Nanos, cost: u64) {
        let (count, _) = self.current(state, now);
        if count == 0 && cost > self.capacity() && cost <= self.most() {
            return self.charge(state, now, cost);
        }
        if cost > 0 || self.saved().is_some() {
            self.begin(state, now, count);
        }
        state[1] = count.max(count.saturating_add(cost).min(self.capacity()));
    }

    fn charge(&self, state: &mut [u64], now: Nanos, cost: u64) {
        let (count, _) = self.current(state, now);
        if cost > 0 {
            self.begin(state, now, count);
            state[1] = count.saturating_add(cost).min(MOST_USED);
        }
    }

    fn refund(&self, state: &mut [u64], now: Nanos, cost: u64) {
        let (count, _) = self.current(state, now);
        // The highest count stands for any number, so it stays.
        if count > 0 && count < MOST_USED {
            self.begin(state, now, count);
            state[1] = count.saturating_sub(cost);
        }
    }

    fn used(&self, state: &[u64], now: Nanos) -> u64 {
        self.current(state, now).0
    }
}

impl StoredState for FixedWindow {
    fn join(&self, state: &mut [u64], other: &[u64], now: Nanos) {
        let (mine, my_left) = self.current(state, now);
        let (theirs, their_left) = self.current(other, now);
        if theirs == 0 {
            return;
        }
        // The later end and the higher count deny everything that either state would.
        if self.saved().is_some() {
            let (start, later) = (self.settled(state, now).0, self.settled(other, now).0);
            state[0] = if mine == 0 { later } else { start.max(later) };
        } else if mine == 0 || their_left > my_left {
            state[0] = other[0];
        }
        state[1] = mine.max(theirs);
    }

    fn accepts(&self, state: &[u64]) -> bool {
        state.len() == 2 && state[0] <= Nanos::MAX.get() && state[1] <= MOST_USED
    }

    fn debt(&self, state: &[u64], now: Nanos) -> Option<Debt> {
        let (count, left) = self.current(state, now);
        let end = now.get().saturating_add(self.until_back(count, left));
        Debt::until(count, self.capacity(), end, now)
    }

    fn owe(&self, state: &mut [u64], debt: Debt) {
        let end = self.wall(Nanos::new(debt.end()));
        if let Some(burst) = self.saved() {
            let end = if self.is_first_hit() {
                end
            } else {
                self.start(end)
            };
            let units = debt.share.units(burst);
            // Small shares are exact. Others are rounded up, to whole lumps: the count is never
            // less than what the windows until the end give back.
            let is_exact = burst <= 127 && debt.share <= Share::EXHAUSTED;
            let lumps = units.div_ceil(self.lump()).min(end / self.window);
            let most = lumps.saturating_mul(self.lump());
            state[0] = end - lumps * self.window;
            state[1] = if is_exact { units.min(most) } else { most }.min(MOST_USED);
            return;
        }
        state[0] = match self.begins {
            // The debt's end was rounded up, or the distance of the clocks has changed since: the
            // window's end is the nearest one.
            Begins::Calendar(calendar, _) => {
                let (start, next) = (calendar.start(end), calendar.end(end));
                if next - end < end - start {
                    start
                } else {
                    calendar.start(start.saturating_sub(1))
                }
            }
            // An aligned window ends at a multiple of its length, even if the debt's end was
            // rounded up.
            _ => self.start(end).saturating_sub(self.window),
        };
        state[1] = debt.share.units(self.limit).min(MOST_USED);
    }
}
