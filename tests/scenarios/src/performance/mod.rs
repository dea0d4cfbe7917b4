//! Scenarios that are benchmarked instead of asserted, compared with a hand-written implementation where that
//! makes sense. `cargo xtask bench scenarios` runs them; `INDEX.md` lists them by their doc comments.

mod changing;
mod deciding;
mod failing;
mod naive;
mod repeating;
mod storing;
mod together;

use bench_select::time;

/// Benchmark runner and output.
#[derive(Debug, Default)]
pub struct Bench {
    /// Print one JSON object per line instead of a table.
    pub json: bool,
    /// Run only cases whose name contains this.
    pub filter: Option<String>,
    case: &'static str,
}

impl Bench {
    /// Nanoseconds per run of LayerZero and of a hand-written peer.
    fn compare(&self, peer: &str, runs: u32, ours: impl FnMut(), theirs: impl FnMut()) {
        self.report("ns", time(runs, ours), Some((peer, time(runs, theirs))));
    }

    /// Nanoseconds per run of LayerZero, without a peer.
    fn measure(&self, runs: u32, ours: impl FnMut()) {
        self.report("ns", time(runs, ours), None);
    }

    /// Reports a result that was measured by the case itself.
    fn report(&self, unit: &str, ours: f64, peer: Option<(&str, f64)>) {
        let case = self.case.replace('_', " ");
        if self.json {
            let (peer, theirs, speedup) = match peer {
                Some((peer, theirs)) => {
                    (format!("\"{peer}\""), format!("{theirs:.1}"), format!("{:.2}", theirs / ours))
                }
                None => ("null".to_owned(), "null".to_owned(), "null".to_owned()),
            };
            println!(
                "{{\"bench\": \"scenarios\", \"case\": \"{case}\", \"unit\": \"{unit}\", \"ours\": {ours:.1}, \"peer\": {peer}, \"theirs\": {theirs}, \"speedup\": {speedup}, \"limit\": null}}"
            );
            return;
        }
        match peer {
            Some((peer, theirs)) => {
                println!("{case:<58} {ours:>11.1} {unit}   {:>8.2} × {peer} ({theirs:.1})", theirs / ours);
            }
            None => println!("{case:<58} {ours:>11.1} {unit}"),
        }
    }
}

type Case = (&'static str, fn(&mut Bench));

macro_rules! cases {
    ($($module:ident: $($name:ident),+ $(,)?;)+) => {
        [$($((stringify!($name), $module::$name as fn(&mut Bench))),+),+]
    };
}

/// All cases in execution order.
const CASES: [Case; 36] = cases! {
    repeating: a_decode_loop_of_one_shape, a_norm_among_four_shapes, sixty_four_shapes_in_turn,
        a_thousand_shapes_in_turn, every_row_count_of_a_bucket, a_limit_that_no_bucket_holds, a_call_inside_of_a_capture,
        a_prompt_of_small_attention, twenty_rules_in_force, figures_in_force, a_lock_in_force,
        a_call_inside_of_a_preference, an_output_of_the_callers_own;
    deciding: the_first_call_of_a_shape_with_four_kernels, the_first_call_of_a_shape_with_thirty_two_kernels,
        the_first_call_under_twenty_rules, the_first_call_with_figures_from_disk, a_call_that_nothing_can_run,
        asking_which_kernel_would_run, explaining_a_decision, an_explanation_as_a_table;
    together: two_threads_on_one_shape, two_threads_on_sixty_four_shapes, two_threads_while_the_policy_reloads;
    changing: a_policy_is_replaced, a_plugin_comes_and_goes, sixty_four_shapes_after_a_reload, a_policy_file_is_read,
        a_lockfile_of_two_hundred_decisions;
    failing: a_kernel_that_fails_and_another_that_steps_in, a_kernel_that_panics, a_call_past_an_open_circuit,
        a_wrong_call_is_refused;
    storing: a_measurement_is_stored, a_thousand_figures_are_loaded, a_database_is_opened;
};

/// Runs all cases that match the filter.
pub fn run(mut bench: Bench) {
    for (name, case) in CASES {
        if bench.filter.as_ref().is_none_or(|part| name.contains(part.as_str())) {
            bench.case = name;
            case(&mut bench);
        }
    }
}
