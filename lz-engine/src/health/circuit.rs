//! A circuit breaker as a pure state machine: no clock, no lock, no name. Time is passed in.
//!
//! ```text
//!   closed ──failures──▶ open ──time──▶ half-open ──successes──▶ closed
//!                         ▲                 │
//!                         └────a failure────┘            lost: final until it is reset
//! ```

use std::time::Duration;

use super::config::CircuitConfig;
use lz_perfdb::HealthState;

/// The answer to a request for admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Closed: the call may run.
    Pass,
    /// The call may run as a probe; report its outcome under this half-open period.
    Probe {
        /// The half-open period that the probe belongs to.
        period: u64,
    },
    /// The call may not run.
    Refuse {
        /// When to retry; `None` if waiting does not help.
        retry_at: Option<Duration>,
    },
}

/// What an event changed that selection can observe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// Nothing.
    None,
    /// The reliability penalty only.
    Weight,
    /// The state.
    State {
        /// Before.
        from: HealthState,
        /// After.
        to: HealthState,
    },
    /// All failures are forgiven: the record can be removed.
    Forgiven,
}

/// A circuit breaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Circuit {
    state: HealthState,
    failures: u32,
    openings: u32,
    /// Consecutive successes while closed.
    streak: u32,
    /// Counts half-open periods, so that late probes of an earlier period are ignored.
    period: u64,
    probes_granted: u32,
    probes_succeeded: u32,
    /// When it became half-open, or when a probe last started or ended.
    last_probe_activity: Duration,
    next_probe_at: Duration,
    lost: bool,
    /// A single failure opened it regardless of the threshold: the kernel may crash the process or the device.
    tripped: bool,
    last_error: String,
}

impl Default for Circuit {
    fn default() -> Self {
        Circuit {
            state: HealthState::Closed,
            failures: 0,
            openings: 0,
            streak: 0,
            period: 0,
            probes_granted: 0,
            probes_succeeded: 0,
            last_probe_activity: Duration::ZERO,
            next_probe_at: Duration::ZERO,
            lost: false,
            tripped: false,
            last_error: String::new(),
        }
    }
}

impl Circuit {
    /// A circuit restored from storage; `next_probe_at` is used if it is open, and without it the circuit is quarantined. Half-open
    /// is restored as open. A circuit that is
    /// open with fewer failures than the threshold was tripped by a single failure.
    pub fn restored(
        state: HealthState,
        failures: u32,
        openings: u32,
        next_probe_at: Option<Duration>,
        last_error: String,
        config: &CircuitConfig,
    ) -> Circuit {
        let state = if state == HealthState::Closed { HealthState::Closed } else { HealthState::Open };
        let lost = state == HealthState::Open && next_probe_at.is_none();
        let tripped = lost || state == HealthState::Open && failures < config.failure_threshold;
        let next_probe_at = next_probe_at.unwrap_or_default();
        Circuit { state, failures, openings, next_probe_at, lost, tripped, last_error, ..Circuit::default() }
    }

    /// The state.
    pub fn state(&self) -> HealthState {
        self.state
    }

    /// Failures that are not forgiven.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Openings that are not forgiven.
    pub fn openings(&self) -> u32 {
        self.openings
    }

    /// The text of the latest error.
    pub fn last_error(&self) -> &str {
        &self.last_error
    }

    /// Whether it is open permanently.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Whether a single failure opened it regardless of the threshold.
    pub fn opened_at_once(&self) -> bool {
        self.tripped
    }

    /// When an open circuit may be probed; `None` if it is not open, or is lost.
    pub fn next_probe_at(&self) -> Option<Duration> {
        (self.state == HealthState::Open && !self.lost).then_some(self.next_probe_at)
    }

    /// When the next timed transition is due: a probe becomes possible, or a probe times out.
    pub fn due_at(&self, config: &CircuitConfig) -> Option<Duration> {
        match self.state {
            HealthState::HalfOpen => (self.probes_granted > 0)
                .then(|| self.last_probe_activity.saturating_add(config.probe_timeout)),
            _ => self.next_probe_at(),
        }
    }

    /// Whether a half-open period can grant another probe.
    pub fn has_probe(&self, config: &CircuitConfig) -> bool {
        self.state == HealthState::HalfOpen && self.probes_granted < config.max_probes.max(1)
    }

    /// Performs timed transitions: an open circuit becomes half-open after its backoff; a half-open one whose probes timed out
    /// opens again.
    pub fn poll(&mut self, now: Duration, config: &CircuitConfig) -> Transition {
        match self.state {
            HealthState::Open if !self.lost && now >= self.next_probe_at => {
                self.period += 1;
                self.probes_granted = 0;
                self.probes_succeeded = 0;
                self.last_probe_activity = now;
                self.enter(HealthState::HalfOpen)
            }
            HealthState::HalfOpen
                if self.probes_granted > 0
                    && now >= self.last_probe_activity.saturating_add(config.probe_timeout) =>
            {
                self.last_error = "a probe timed out".to_owned();
                self.open(now, config)
            }
            _ => Transition::None,
        }
    }

    /// Requests admission. Call [`Circuit::poll`] first. A granted probe must end in `succeeded`, `failed` or `abandoned`.
    pub fn admit(&mut self, now: Duration, config: &CircuitConfig) -> Admission {
        match self.state {
            HealthState::Closed => Admission::Pass,
            HealthState::Open => Admission::Refuse { retry_at: self.next_probe_at() },
            HealthState::HalfOpen if self.has_probe(config) => {
                self.probes_granted += 1;
                self.last_probe_activity = now;
                Admission::Probe { period: self.period }
            }
            HealthState::HalfOpen => Admission::Refuse { retry_at: self.due_at(config) },
        }
    }

    /// Records a success. While half-open only probes of the current period count; while closed only ordinary calls count.
    pub fn succeeded(&mut self, probe: Option<u64>, now: Duration, config: &CircuitConfig) -> Transition {
        match (self.state, probe) {
            (HealthState::HalfOpen, Some(period)) if period == self.period => {
                self.last_probe_activity = now;
                self.probes_succeeded += 1;
                if self.probes_succeeded < config.successes_to_close() {
                    return Transition::None;
                }
                self.failures = 0;
                self.streak = 0;
                self.tripped = false;
                self.enter(HealthState::Closed)
            }
            (HealthState::Closed, None) => {
                self.streak = self.streak.saturating_add(1);
                if self.streak >= config.forgiveness_streak || (self.openings == 0 && self.failures == 0) {
                    self.failures = 0;
                    self.openings = 0;
                    return Transition::Forgiven;
                }
                if self.failures > 0 && self.streak >= config.recovery_streak {
                    self.failures = 0;
                    return if self.openings == 0 { Transition::Forgiven } else { Transition::Weight };
                }
                Transition::None
            }
            _ => Transition::None,
        }
    }

    /// Records a failure. A late failure of a call that was admitted before the circuit opened is ignored.
    pub fn failed(
        &mut self,
        probe: Option<u64>,
        error: &str,
        now: Duration,
        config: &CircuitConfig,
    ) -> Transition {
        match (self.state, probe) {
            (HealthState::HalfOpen, Some(period)) if period == self.period => {
                self.note(error);
                self.failures = self.failures.saturating_add(1);
                self.open(now, config)
            }
            (HealthState::Closed, None) => {
                self.note(error);
                self.streak = 0;
                self.failures = self.failures.saturating_add(1);
                if self.failures >= config.failure_threshold.max(1) {
                    self.open(now, config)
                } else {
                    Transition::Weight
                }
            }
            _ => Transition::None,
        }
    }

    /// Ends a probe without an outcome; it can be granted again.
    pub fn abandoned(&mut self, period: u64) {
        if self.state == HealthState::HalfOpen && period == self.period {
            self.probes_granted = self.probes_granted.saturating_sub(1);
        }
    }

    /// Opens immediately, regardless of the threshold, after a fatal failure. An open circuit keeps its backoff.
    pub fn trip(&mut self, error: &str, now: Duration, config: &CircuitConfig) -> Transition {
        self.note(error);
        if self.state == HealthState::Open {
            return Transition::None;
        }
        self.failures = self.failures.saturating_add(1);
        self.tripped = true;
        self.open(now, config)
    }

    /// Opens until it is reset: the kernel returned a wrong result, which no probe would detect.
    pub fn quarantine(&mut self, error: &str) -> Transition {
        self.tripped = true;
        self.lose(error)
    }

    /// Opens permanently.
    pub fn lose(&mut self, error: &str) -> Transition {
        if self.lost {
            return Transition::None;
        }
        self.note(error);
        self.failures = self.failures.saturating_add(1);
        self.lost = true;
        self.enter(HealthState::Open)
    }

    fn note(&mut self, error: &str) {
        // An error text can be pages of compiler output; the beginning is enough.
        const MAX_ERROR_BYTES: usize = 1000;
        let end = (0..=MAX_ERROR_BYTES.min(error.len()))
            .rev()
            .find(|end| error.is_char_boundary(*end))
            .unwrap_or(0);
        self.last_error = error.get(..end).unwrap_or_default().to_owned();
    }

    fn open(&mut self, now: Duration, config: &CircuitConfig) -> Transition {
        self.openings = self.openings.saturating_add(1);
        self.next_probe_at = now.saturating_add(config.backoff(self.openings));
        self.streak = 0;
        self.enter(HealthState::Open)
    }

    fn enter(&mut self, to: HealthState) -> Transition {
        let from = std::mem::replace(&mut self.state, to);
        Transition::State { from, to }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn config() -> CircuitConfig {
        CircuitConfig {
            failure_threshold: 3,
            success_threshold: 2,
            max_probes: 2,
            base_backoff: 10 * SECOND,
            max_backoff: 40 * SECOND,
            probe_timeout: 60 * SECOND,
            recovery_streak: 3,
            forgiveness_streak: 6,
        }
    }

    fn opened() -> Circuit {
        let mut circuit = Circuit::default();
        for _ in 0..3 {
            circuit.failed(None, "no", Duration::ZERO, &config());
        }
        circuit
    }

    #[test]
    fn circuit_opens_probes_and_closes() {
        let mut circuit = opened();
        assert_eq!(circuit.state(), HealthState::Open);
        assert_eq!(circuit.admit(9 * SECOND, &config()), Admission::Refuse { retry_at: Some(10 * SECOND) });
        assert_eq!(circuit.poll(9 * SECOND, &config()), Transition::None);
        circuit.poll(10 * SECOND, &config());
        let Admission::Probe { period } = circuit.admit(10 * SECOND, &config()) else { panic!("no probe") };
        assert_eq!(circuit.admit(10 * SECOND, &config()), Admission::Probe { period });
        assert!(matches!(circuit.admit(10 * SECOND, &config()), Admission::Refuse { .. }));
        assert_eq!(circuit.succeeded(Some(period), 11 * SECOND, &config()), Transition::None);
        circuit.succeeded(Some(period), 11 * SECOND, &config());
        assert_eq!((circuit.state(), circuit.failures(), circuit.openings()), (HealthState::Closed, 0, 1));
        let forgiven: Vec<Transition> =
            (0..6).map(|_| circuit.succeeded(None, 12 * SECOND, &config())).collect();
        assert_eq!(forgiven.last(), Some(&Transition::Forgiven));
        assert!(forgiven.iter().rev().skip(1).all(|transition| *transition == Transition::None));
    }

    #[test]
    fn alternating_failures_open() {
        let mut circuit = Circuit::default();
        for _ in 0..3 {
            circuit.failed(None, "flaky", Duration::ZERO, &config());
            circuit.succeeded(None, Duration::ZERO, &config());
        }
        assert_eq!(circuit.state(), HealthState::Open);
    }

    #[test]
    fn consecutive_successes_forgive_failures() {
        let mut circuit = Circuit::default();
        circuit.failed(None, "once", Duration::ZERO, &config());
        assert_eq!(circuit.succeeded(None, SECOND, &config()), Transition::None);
        assert_eq!(circuit.succeeded(None, SECOND, &config()), Transition::None);
        assert_eq!(circuit.succeeded(None, SECOND, &config()), Transition::Forgiven);
    }

    #[test]
    fn late_probe_of_an_earlier_period_is_ignored() {
        let mut circuit = opened();
        circuit.poll(10 * SECOND, &config());
        let Admission::Probe { period } = circuit.admit(10 * SECOND, &config()) else { panic!("no probe") };
        circuit.failed(Some(period), "still", 11 * SECOND, &config());
        circuit.poll(31 * SECOND, &config());
        assert_eq!(circuit.state(), HealthState::HalfOpen);
        for _ in 0..config().success_threshold {
            assert_eq!(circuit.succeeded(Some(period), 31 * SECOND, &config()), Transition::None);
        }
        while circuit.has_probe(&config()) {
            circuit.admit(31 * SECOND, &config());
        }
        circuit.abandoned(period);
        assert!(!circuit.has_probe(&config()), "a probe of an earlier period returns nothing");
        assert_eq!(circuit.failed(Some(period), "old news", 31 * SECOND, &config()), Transition::None);
        assert_eq!(circuit.failed(None, "older news", 31 * SECOND, &config()), Transition::None);
        assert_eq!(circuit.state(), HealthState::HalfOpen);
    }

    #[test]
    fn probe_times_out() {
        let mut circuit = opened();
        circuit.poll(10 * SECOND, &config());
        circuit.admit(10 * SECOND, &config());
        assert_eq!(circuit.poll(69 * SECOND, &config()), Transition::None);
        circuit.poll(70 * SECOND, &config());
        assert_eq!((circuit.state(), circuit.next_probe_at()), (HealthState::Open, Some(90 * SECOND)));
    }

    #[test]
    fn without_a_probe_nothing_times_out() {
        let mut circuit = opened();
        circuit.poll(10 * SECOND, &config());
        assert_eq!((circuit.state(), circuit.due_at(&config())), (HealthState::HalfOpen, None));
        assert_eq!(circuit.poll(1000 * SECOND, &config()), Transition::None);
        circuit.admit(1000 * SECOND, &config());
        assert_eq!(circuit.due_at(&config()), Some(1060 * SECOND));
    }

    #[test]
    fn restored_circuit_keeps_its_counts() {
        let circuit = Circuit::restored(HealthState::Closed, 1, 3, None, "no".to_owned(), &config());
        assert_eq!((circuit.failures(), circuit.openings(), circuit.last_error()), (1, 3, "no"));
    }

    #[test]
    fn lost_circuit_is_never_probed() {
        let mut circuit = Circuit::default();
        circuit.lose("an illegal memory access was encountered");
        assert_eq!(circuit.poll(Duration::MAX, &config()), Transition::None);
        assert_eq!(circuit.admit(Duration::MAX, &config()), Admission::Refuse { retry_at: None });
    }

    #[test]
    fn long_errors_are_truncated_at_a_char_boundary() {
        let mut circuit = Circuit::default();
        circuit.failed(None, &"é".repeat(2000), Duration::ZERO, &config());
        assert_eq!(circuit.last_error().len(), 1000);
    }

    #[derive(Debug, Clone)]
    enum Event {
        Wait(u64),
        Call,
        Succeed(usize),
        Fail(usize),
        Abandon(usize),
        Trip,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => (0u64..30).prop_map(Event::Wait),
            6 => Just(Event::Call),
            4 => any::<usize>().prop_map(Event::Succeed),
            4 => any::<usize>().prop_map(Event::Fail),
            2 => any::<usize>().prop_map(Event::Abandon),
            1 => Just(Event::Trip),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn invariants_hold_for_any_event_order(events in proptest::collection::vec(event(), 0..200)) {
            let config = config();
            let mut circuit = Circuit::default();
            let mut now = Duration::ZERO;
            // Running calls, and the model of the current half-open period.
            let mut running: Vec<Option<u64>> = Vec::new();
            let (mut granted, mut succeeded) = (0u32, 0u32);
            let mut opened_at = None::<Duration>;
            for event in events {
                let waited = circuit.poll(now, &config);
                if let Transition::State { to: HealthState::Open, .. } = waited {
                    opened_at = Some(now);
                }
                if let Transition::State { from: HealthState::Open, to: HealthState::HalfOpen } = waited {
                    (granted, succeeded) = (0, 0);
                    let shortest = opened_at.expect("it was open") + config.base_backoff;
                    prop_assert!(now >= shortest, "half-open before its time");
                }
                let present = circuit.period;
                let mut ended = None;
                let transition = match event {
                    Event::Wait(seconds) => { now += Duration::from_secs(seconds); Transition::None }
                    Event::Call => {
                        match circuit.admit(now, &config) {
                            Admission::Pass => {
                                prop_assert_eq!(circuit.state(), HealthState::Closed);
                                running.push(None);
                            }
                            Admission::Probe { period } => {
                                prop_assert_eq!(circuit.state(), HealthState::HalfOpen);
                                granted += 1;
                                prop_assert!(granted <= config.max_probes, "too many probes");
                                running.push(Some(period));
                            }
                            Admission::Refuse { retry_at } => {
                                prop_assert!(circuit.state() != HealthState::Closed);
                                if circuit.state() == HealthState::Open {
                                    prop_assert!(retry_at.is_some_and(|at| at > now), "refused after its time");
                                }
                            }
                        }
                        Transition::None
                    }
                    Event::Succeed(which) if !running.is_empty() => {
                        let call = running.swap_remove(which % running.len());
                        ended = call;
                        succeeded += u32::from(call == Some(present) && circuit.state() == HealthState::HalfOpen);
                        circuit.succeeded(call, now, &config)
                    }
                    Event::Fail(which) if !running.is_empty() => {
                        let call = running.swap_remove(which % running.len());
                        ended = call;
                        circuit.failed(call, "failed", now, &config)
                    }
                    Event::Abandon(which) if !running.is_empty() => {
                        if let Some(period) = running.swap_remove(which % running.len()) {
                            if period == present && circuit.state() == HealthState::HalfOpen {
                                granted -= 1;
                            }
                            circuit.abandoned(period);
                        }
                        Transition::None
                    }
                    Event::Trip => circuit.trip("fatal", now, &config),
                    _ => Transition::None,
                };
                if let Transition::State { from, to } = transition {
                    prop_assert!(from != to);
                    match to {
                        HealthState::Closed => {
                            prop_assert_eq!(from, HealthState::HalfOpen);
                            prop_assert_eq!(ended, Some(present));
                            prop_assert!(succeeded >= config.success_threshold);
                        }
                        HealthState::Open => {
                            let due = circuit.next_probe_at().expect("an open circuit has a time");
                            prop_assert!(due > now && due <= now + config.max_backoff);
                        }
                        HealthState::HalfOpen => prop_assert!(false, "only time half-opens"),
                    }
                }
                if matches!(transition, Transition::State { to: HealthState::Open, .. }) {
                    opened_at = Some(now);
                }
            }
        }
    }
}
