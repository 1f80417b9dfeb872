//! Pie's layers swapped for real, beside what is predicted. Run with `cargo bench --bench serving -- my.toml FOLDER`: this machine's
//! profile (`plimsoll profile --quick --dtype f32 -o my.toml`), and where tables and pictures go.
//!
//! OPT-125M's shape in f32 with synthetic weights, on the emulated device: up to about eight sequences a token takes as long as for
//! one, since weights are read once for all. The cache has room for about three, and the link hides some swapping, but not all.
//! Cases are served in turn, all once and then all again, since shared machines change their pace, and of each the run of median
//! throughput counts: no swapping, fixed expansions, a device that has as much room as Pie seems to have, adaptive
//! expansion; and once that with traffic of others on the link. Predictions are made at the pace that the machine has around each run,
//! and measurements are brought to the profile's own pace where cases are compared.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use plimsoll::files::{find_model, find_profile};
use plimsoll::report::{
    Align, OverTime, Table, picture_svg, signed_percent, three_digits, to_csv, write_picture_png,
};
use plimsoll::serve::execute::Executed;
use plimsoll::serve::gpus::Gpus;
use plimsoll::serve::over_time::{panels, rows, shaded};
use plimsoll::serve::replay::{Expansion, Manager, Server};
use plimsoll::serve::workload::{Arrivals, Generator};
use plimsoll_backend::cpu::{CpuOptions, Throttles};
use plimsoll_backend::dispatch::Dispatch;
use plimsoll_backend::probe::PaceMeter;
use plimsoll_backend::weights::{Remembered, Synthetic, WeightSource};
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::{HardwareProfile, Slowness};
use plimsoll_core::serve::pie::Settings;
use plimsoll_core::serve::{IterationRow, Limits, Request, ServeSummary};
use plimsoll_core::traffic::{Background, Traffic, Ways};
use plimsoll_core::units::{Bytes, BytesPerSecond, Seconds};
use serde::Serialize;

const KV: Bytes = Bytes(12_500_000);
const LINK: BytesPerSecond = BytesPerSecond(0.4e9);
const TRAFFIC: BytesPerSecond = BytesPerSecond(0.25e9);
/// Of the run that is predicted without traffic, when it begins and ends.
const TRAFFIC_FROM_TO: [f64; 2] = [0.35, 0.65];
/// Requests in the run with traffic, and of them in all others.
const REQUESTS: usize = 36;
const FEW: usize = 18;
const EXPANSIONS: [f64; 4] = [1.4, 1.6, 1.8, 2.0];
/// What was given up is tried again so soon in the run with traffic, which is short.
const PROBE_AFTER: u32 = 80;
const SEED: u64 = 1;
/// Runs of each case, an odd number.
const ROUNDS: usize = 3;

/// A run's numbers. Times are seconds; `predicted_` at the pace of the run, `error` is of that.
#[derive(Debug, Serialize)]
struct Row {
    case: String,
    pace: f64,
    predicted_as_profiled_tokens_per_s: f64,
    predicted_tokens_per_s: f64,
    measured_tokens_per_s: f64,
    /// Of all rounds, least and most, at the profile's own pace as the gains are.
    least_measured_gain: f64,
    most_measured_gain: f64,
    error: f64,
    predicted_gain: f64,
    measured_gain: f64,
    gain_error: f64,
    predicted_compute_s_per_token: f64,
    measured_compute_s_per_token: f64,
    predicted_compute_over_none: f64,
    measured_compute_over_none: f64,
    /// Of iterations without prompts, over those of as many sequences in runs that swap nothing, in all rounds.
    predicted_step_over_unswapped: f64,
    measured_step_over_unswapped: f64,
    predicted_settled_step_over_unswapped: f64,
    measured_settled_step_over_unswapped: f64,
    predicted_stalled: f64,
    measured_stalled: f64,
    predicted_expansion: f64,
    measured_expansion: f64,
    measured_batch: f64,
    preemptions: u64,
    completed: u64,
    same_tokens: bool,
}

/// A case that was served.
struct Served {
    case: String,
    server: Server,
    slowness: Slowness,
    as_profiled: ServeSummary,
    predicted: (ServeSummary, Vec<IterationRow>),
    executed: Executed,
}

/// Iterations without prompts, by how many sequences they had: how many they were, and their seconds at the profile's own
/// pace together.
#[derive(Debug, Default)]
struct Steps(BTreeMap<u32, (f64, f64)>);

impl Steps {
    fn add(&mut self, iterations: &[IterationRow], to_profiles_pace: f64) {
        for it in iterations.iter().filter(|it| it.prompt_tokens == 0) {
            let (count, seconds) = self.0.entry(it.sequences).or_default();
            *count += 1.0;
            *seconds += (it.ended_s - it.began_s) * to_profiles_pace;
        }
    }

    /// How much longer they took than others of as many sequences, over the numbers of sequences that both had.
    fn over(&self, others: &Steps) -> f64 {
        let both = self.0.iter().filter_map(|(sequences, (count, seconds))| {
            let (others, others_seconds) = others.0.get(sequences)?;
            Some((seconds, count * others_seconds / others))
        });
        let (took, would_have) = both.fold((0.0, 0.0), |all, it| (all.0 + it.0, all.1 + it.1));
        took / would_have
    }
}

/// Which of a run's iterations count.
#[derive(Clone, Copy)]
enum Which {
    All,
    /// The longest time in turn at one expansion: where adaptive expansion has come to rest.
    Settled,
}

impl Which {
    fn of(self, iterations: &[IterationRow]) -> &[IterationRow] {
        let at_one = iterations.chunk_by(|a, b| a.expansion == b.expansion);
        let lasted = |them: &&[IterationRow]| match them {
            [first, .., last] => last.ended_s - first.began_s,
            _ => 0.0,
        };
        let longest = at_one.max_by(|a, b| lasted(a).total_cmp(&lasted(b)));
        match self {
            Which::All => iterations,
            Which::Settled => longest.unwrap_or_default(),
        }
    }
}

/// What a case's iterations took in all rounds, predicted and measured.
fn steps<'a>(rounds: impl IntoIterator<Item = &'a Served>, which: Which) -> [Steps; 2] {
    let mut all = [Steps::default(), Steps::default()];
    for it in rounds {
        let to_profiles_pace = it.as_profiled.duration_s / it.predicted.0.duration_s;
        all[0].add(which.of(&it.predicted.1), to_profiles_pace);
        let measured = &it.executed.replayed.iterations;
        all[1].add(which.of(measured), to_profiles_pace);
    }
    all
}

struct Bench {
    profile: HardwareProfile,
    options: CpuOptions,
    meter: PaceMeter,
    weights: Remembered<Synthetic>,
}

fn held(profile: &HardwareProfile) -> HardwareProfile {
    profile.with_link_cap(Some(LINK), Some(LINK))
}

fn requests() -> anyhow::Result<Vec<Request>> {
    let lengths = |text: &str| text.parse().map_err(anyhow::Error::msg);
    Ok(Generator {
        arrivals: Arrivals::AtOnce,
        prompt: lengths("constant:4")?,
        output: lengths("uniform:56,92")?,
        total_max: None,
        requests: REQUESTS,
        seed: SEED,
    }
    .requests()?)
}

impl Bench {
    fn new(profile: &str) -> anyhow::Result<Bench> {
        let profile = find_profile(profile)?;
        let options = CpuOptions {
            throttles: Throttles {
                h2d: Some(LINK),
                d2h: Some(LINK),
                ..Throttles::default()
            },
            pin_cores: true,
            dispatch: Dispatch::default().with_profile(&profile),
            ..CpuOptions::new(std::env::temp_dir())
        };
        Ok(Bench {
            profile,
            meter: PaceMeter::new(&options)?,
            options,
            weights: Remembered::new(Synthetic { seed: SEED }),
        })
    }

    fn server(&self, expansion: Expansion) -> anyhow::Result<Server> {
        Ok(Server {
            profile: held(&self.profile),
            model: find_model("opt-125m")?.spec,
            dtype: Dtype::F32,
            compression: Compression::default(),
            gpus: Gpus::One,
            manager: Manager::Pie(expansion),
            kv_bytes: KV,
            limits: Limits {
                sequences: 256,
                tokens: 2048,
            },
            clients: None,
            slo_s: 0.1875,
            traffic: Background::default(),
            logged: true,
        })
    }

    fn serve(&mut self, case: &str, server: Server, all: &[Request]) -> anyhow::Result<Served> {
        let with = (&self.weights as &dyn WeightSource, SEED);
        let paced = self
            .meter
            .steadily(|| server.execute(all, with, &self.options, &mut |_| ()))?;
        let (executed, moment) = (paced.result, paced.moment);
        let slowness = moment.slowness(&self.profile).unwrap_or(Slowness::NONE);
        let at_pace = Server {
            profile: held(&self.profile.at_pace(&slowness)),
            ..server.clone()
        };
        let predicted = at_pace.replay(all)?;
        println!(
            "{case}: {} tokens/s",
            three_digits(executed.replayed.summary.output_tokens_per_s)
        );
        Ok(Served {
            case: case.to_owned(),
            as_profiled: server.replay(all)?.summary,
            predicted: (predicted.summary, predicted.iterations),
            server,
            slowness,
            executed,
        })
    }
}

/// Over time.
fn expansion(summary: &ServeSummary) -> f64 {
    let layers = summary.layers.as_ref();
    layers.map_or(1.0, |layers| layers.expansion)
}

impl Served {
    fn measured(&self) -> &ServeSummary {
        &self.executed.replayed.summary
    }

    /// What was measured, and what that would be at the profile's own pace, as predictions go.
    fn at_profiles_pace(&self, value: fn(&ServeSummary) -> f64) -> f64 {
        value(self.measured()) * value(&self.as_profiled) / value(&self.predicted.0)
    }

    fn row(&self, of_rounds: &OfRounds, none: &Served, tokens: &[Vec<u32>]) -> Row {
        let (predicted, measured) = (&self.predicted.0, self.measured());
        let rate: fn(&ServeSummary) -> f64 = |it| it.output_tokens_per_s;
        let compute: fn(&ServeSummary) -> f64 = |it| it.compute_s_per_token.mean;
        let stalled = |it: &ServeSummary| {
            it.layers.as_ref().map_or(0.0, |layers| layers.stalled_s) / it.duration_s
        };
        // Over no swapping, as predicted and as measured.
        let [gain, slower] = [rate, compute].map(|value| {
            let predicted = value(&self.as_profiled) / value(&none.as_profiled);
            let measured = self.at_profiles_pace(value) / none.at_profiles_pace(value);
            (predicted, measured)
        });
        let [least, most] = of_rounds.ends.map(|end| end / none.at_profiles_pace(rate));
        let [predicted_step, measured_step] = of_rounds.step_over_unswapped;
        let [predicted_settled, measured_settled] = of_rounds.settled_step;
        Row {
            case: self.case.clone(),
            pace: self.slowness.few_tokens,
            predicted_as_profiled_tokens_per_s: rate(&self.as_profiled),
            predicted_tokens_per_s: rate(predicted),
            measured_tokens_per_s: rate(measured),
            least_measured_gain: least,
            most_measured_gain: most,
            error: rate(predicted) / rate(measured) - 1.0,
            predicted_gain: gain.0,
            measured_gain: gain.1,
            gain_error: gain.0 / gain.1 - 1.0,
            predicted_compute_s_per_token: compute(predicted),
            measured_compute_s_per_token: compute(measured),
            predicted_compute_over_none: slower.0,
            measured_compute_over_none: slower.1,
            predicted_step_over_unswapped: predicted_step,
            measured_step_over_unswapped: measured_step,
            predicted_settled_step_over_unswapped: predicted_settled,
            measured_settled_step_over_unswapped: measured_settled,
            predicted_stalled: stalled(predicted),
            measured_stalled: stalled(measured),
            predicted_expansion: expansion(predicted),
            measured_expansion: expansion(measured),
            measured_batch: measured.average_batch,
            preemptions: measured.preemptions,
            completed: measured.completed,
            same_tokens: self.executed.generated == tokens[..self.executed.generated.len()],
        }
    }

    /// Writes its iterations, as predicted at its pace and as measured, and draws them.
    fn write(&self, folder: &Path, name: &str) -> anyhow::Result<()> {
        let runs: [(&str, &[IterationRow]); 2] = [
            ("predicted at this pace", &self.predicted.1),
            ("measured", &self.executed.replayed.iterations),
        ];
        let all: Vec<_> = runs.iter().flat_map(|(run, it)| rows(run, it)).collect();
        fs::write(folder.join(format!("{name}.csv")), to_csv(&all)?)?;
        let picture = OverTime {
            title: &format!("{}: OPT-125M in f32, emulated device", self.case),
            panels: &panels(&runs),
            shaded: &shaded(&self.server.traffic),
        };
        fs::write(folder.join(format!("{name}.svg")), picture_svg(&picture)?)?;
        write_picture_png(&folder.join(format!("{name}.png")), &picture)?;
        Ok(())
    }
}

fn text(rows: &[Row]) -> String {
    let right = |name| (name, Align::Right);
    let mut table = Table::new(&[
        ("case", Align::Left),
        right("pace"),
        right("tokens/s predicted"),
        right("measured"),
        right("error"),
        right("gain predicted"),
        right("measured"),
        right("error"),
        right("compute over none predicted"),
        right("measured"),
        right("step over unswapped predicted"),
        right("measured"),
        right("settled"),
        right("waits predicted"),
        right("measured"),
        right("expansion"),
        right("batch"),
        right("same tokens"),
    ]);
    for it in rows {
        let percent = |share: f64| format!("{:.1}%", 100.0 * share);
        table.row([
            it.case.clone(),
            format!("{:.2}", it.pace),
            three_digits(it.predicted_tokens_per_s),
            three_digits(it.measured_tokens_per_s),
            signed_percent(it.error),
            format!("{:.3}", it.predicted_gain),
            format!(
                "{:.3} ({:.3} to {:.3})",
                it.measured_gain, it.least_measured_gain, it.most_measured_gain
            ),
            signed_percent(it.gain_error),
            format!("{:.3}", it.predicted_compute_over_none),
            format!("{:.3}", it.measured_compute_over_none),
            format!("{:.3}", it.predicted_step_over_unswapped),
            format!("{:.3}", it.measured_step_over_unswapped),
            format!("{:.3}", it.measured_settled_step_over_unswapped),
            percent(it.predicted_stalled),
            percent(it.measured_stalled),
            format!("{:.2}", it.measured_expansion),
            three_digits(it.measured_batch),
            it.same_tokens.to_string(),
        ]);
    }
    table.to_string()
}

/// What all rounds of a case say: the least and the most throughput at the profile's own pace, and what a step takes over
/// one that swaps nothing, predicted and measured.
struct OfRounds {
    ends: [f64; 2],
    step_over_unswapped: [f64; 2],
    /// The same of the steps where it has come to rest.
    settled_step: [f64; 2],
}

/// A case, and what came of its rounds.
struct Case {
    name: String,
    server: Server,
    rounds: Vec<Served>,
}

impl Case {
    fn new(name: &str, server: Server) -> Case {
        Case {
            name: name.to_owned(),
            server,
            rounds: Vec::new(),
        }
    }

    fn swaps(&self) -> bool {
        self.server.manager != Manager::Pie(Expansion::Fixed(1.0))
    }

    fn serve(&mut self, bench: &mut Bench, requests: &[Request]) -> anyhow::Result<()> {
        let served = bench.serve(&self.name, self.server.clone(), requests)?;
        self.rounds.push(served);
        Ok(())
    }

    /// The round of median throughput, and what all rounds say.
    fn median(mut self, unswapped: &[Steps; 2]) -> (Served, OfRounds) {
        let rate = |it: &Served| it.at_profiles_pace(|summary| summary.output_tokens_per_s);
        self.rounds.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        let over_unswapped = |which| {
            let [predicted, measured] = steps(&self.rounds, which);
            [predicted.over(&unswapped[0]), measured.over(&unswapped[1])]
        };
        let of_rounds = OfRounds {
            ends: [&self.rounds[0], &self.rounds[self.rounds.len() - 1]].map(rate),
            step_over_unswapped: over_unswapped(Which::All),
            settled_step: over_unswapped(Which::Settled),
        };
        let middle = self.rounds.len() / 2;
        (self.rounds.swap_remove(middle), of_rounds)
    }
}

/// Serves all cases; the one with traffic comes last.
fn cases(
    bench: &mut Bench,
    all: &[Request],
    folder: &Path,
) -> anyhow::Result<Vec<(Served, OfRounds)>> {
    let few = &all[..FEW];
    let mut none = Case::new("no swapping", bench.server(Expansion::Fixed(1.0))?);
    let auto = Expansion::Auto(Settings::default());
    let mut adaptive = Case::new("adaptive", bench.server(auto)?);
    none.serve(bench, few)?;
    adaptive.serve(bench, few)?;
    // A device with the room that the adaptive run had over time, and no swapping.
    let grown = expansion(adaptive.rounds[0].measured());
    let mut cases = vec![none];
    for expansion in EXPANSIONS {
        let server = bench.server(Expansion::Fixed(expansion))?;
        cases.push(Case::new(&format!("expansion {expansion}"), server));
    }
    let roomy = Server {
        kv_bytes: Bytes((KV.as_f64() * grown) as u64),
        ..bench.server(Expansion::Fixed(1.0))?
    };
    let name = format!("no swapping, {grown:.2} times the memory");
    cases.extend([Case::new(&name, roomy), adaptive]);
    for round in 0..ROUNDS {
        for case in cases.iter_mut().filter(|case| case.rounds.len() <= round) {
            case.serve(bench, few)?;
        }
    }
    let disturbed = disturbed(bench, all)?;
    let traffic = &disturbed.traffic.0[0];
    let (from, to) = (traffic.from.0, traffic.to.0);
    let name = format!("adaptive, {TRAFFIC} of traffic from {from} s to {to} s");
    let mut disturbed = Case::new(&name, disturbed);
    disturbed.serve(bench, all)?;
    cases.push(disturbed);
    let unswapped = cases.iter().filter(|case| !case.swaps());
    let unswapped = steps(unswapped.flat_map(|case| &case.rounds), Which::All);
    let served: Vec<_> = cases.into_iter().map(|it| it.median(&unswapped)).collect();
    let [.., (adaptive, _), (disturbed, _)] = &served[..] else {
        unreachable!("both were served");
    };
    adaptive.write(folder, "adaptive")?;
    disturbed.write(folder, "adaptive-traffic")?;
    Ok(served)
}

/// Adaptive expansion with traffic in the middle.
fn disturbed(bench: &Bench, all: &[Request]) -> anyhow::Result<Server> {
    let calm = bench.server(Expansion::Auto(Settings {
        probe_after: PROBE_AFTER,
        ..Settings::default()
    }))?;
    let lasts = calm.replay(all)?.summary.duration_s;
    let [from, to] = TRAFFIC_FROM_TO.map(|share| Seconds((share * lasts).round()));
    let traffic = Traffic {
        from,
        to,
        rate: TRAFFIC,
        ways: Ways::Both,
    };
    Ok(Server {
        traffic: Background(vec![traffic]),
        ..calm
    })
}

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    let [profile, folder] = &args[..] else {
        anyhow::bail!("give this machine's profile and a folder for what comes out");
    };
    let folder = Path::new(folder);
    fs::create_dir_all(folder)?;
    let mut bench = Bench::new(profile)?;
    let all = requests()?;
    // With room for all at once: the tokens that everybody must give.
    let ample = Server {
        kv_bytes: KV * 16,
        ..bench.server(Expansion::Fixed(1.0))?
    };
    let with = (&bench.weights as &dyn WeightSource, SEED);
    let tokens = ample
        .execute(&all, with, &bench.options, &mut |_| ())?
        .generated;
    let served = cases(&mut bench, &all, folder)?;
    let table: Vec<Row> = served
        .iter()
        .map(|(it, of_rounds)| it.row(of_rounds, &served[0].0, &tokens))
        .collect();
    fs::write(folder.join("results.csv"), to_csv(&table)?)?;
    let carried = served.iter().map(|(it, _)| it.executed.carried.0).sum();
    print!(
        "{}\ntraffic: {} were carried beside\n",
        text(&table),
        Bytes(carried)
    );
    Ok(())
}
