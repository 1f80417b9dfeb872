//! The inner level: a linear program over the nine shares (FlexGen section 4.3, equation 1).
//!
//! A device share is one less the two others, so six shares are free, and the time of prefill and of
//! decode are auxiliary variables above all their terms. Every row is divided by its largest
//! coefficient, and times and bytes by what they are at best, so that coefficients are near one.

use good_lp::{
    Expression, ProblemVariables, ResolutionError, Solution, SolverModel, Variable, constraint,
    microlp, variable,
};
use plimsoll_core::policy::{Fractions, Policy};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_sim::closed_form::{Linear, Phase};

use super::PlanError;
use super::room::Room;
use super::space::Shape;

/// Beside the time, a little of all terms: of equally fast placements the one with the least traffic.
/// The solver at times ends on a singular basis; with another weight it takes another way.
const TRAFFIC_WEIGHTS: [f64; 3] = [1e-3, 1.1e-3, 2e-3];

/// And with a little less room it goes by other corners.
const A_LITTLE_LESS: f64 = 0.9999;

/// A share below this is nothing; solvers leave such crumbs.
const SHARE_MIN: f64 = 1e-6;

/// What a solution may be over a tier, of the tier: a solver's tolerance.
const OVER_MAX: f64 = 1e-6;

/// The fastest placement of a shape within its room and, where less than it may be page-locked, of each of those that lock less, with
/// the shape whose it is; none where there is none.
///
/// # Errors
/// As [`place`], where it has no answer for any.
pub(super) fn place_each<'s>(
    shape: &'s Shape,
    room: &Room,
) -> Result<Vec<(Policy, &'s Shape)>, PlanError> {
    if shape.less_locked.is_empty() {
        let placed = place(shape, room)?;
        return Ok(placed.map(|policy| (policy, shape)).into_iter().collect());
    }
    // By the closed form, nothing that locks less is faster.
    match place(shape, &room.locking_anything()) {
        Ok(None) => return Ok(Vec::new()),
        Ok(Some(policy)) if fits(shape, &policy, room) => {
            let placed = also_without_disk(policy, shape, room);
            return Ok(placed.map(|policy| (policy, shape)).collect());
        }
        // What is solved with one more row may go well.
        Ok(Some(_)) | Err(_) => {}
    }
    let (mut placed, mut failed) = (Vec::new(), None);
    for shape in [shape].into_iter().chain(&shape.less_locked) {
        match place(shape, room) {
            Ok(Some(policy)) => {
                let found = also_without_disk(policy, shape, room);
                placed.extend(found.map(|policy| (policy, shape)));
            }
            Ok(None) => {}
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if placed.is_empty() => Err(error),
        _ => Ok(placed),
    }
}

/// [`place`] of a shape with shares: with nothing on disk where it has nothing there and that can be.
///
/// # Errors
/// As [`place`].
pub(super) fn place_again(shape: &Shape, room: &Room) -> Result<Option<Policy>, PlanError> {
    if !uses_disk(&shape.policy)
        && let Ok(Some(placed)) = place(shape, &room.without_disk())
    {
        return Ok(Some(placed));
    }
    place(shape, room)
}

/// Whether anything is on disk.
pub(super) fn uses_disk(policy: &Policy) -> bool {
    let placed = [policy.weights, policy.cache, policy.activations];
    placed.iter().any(|shares| shares.disk > 0.0)
}

/// A placement, and where it uses the disk, the fastest that does not: the first tensor on disk has page-locked buffers to go through,
/// of which the closed form knows a share only.
fn also_without_disk(policy: Policy, shape: &Shape, room: &Room) -> impl Iterator<Item = Policy> {
    let without = uses_disk(&policy).then(|| place(shape, &room.without_disk()));
    // What there is already is an answer.
    let without = without.and_then(|placed| placed.ok().flatten());
    std::iter::once(policy).chain(without)
}

/// The fastest placement of a shape within its room; none where there is none.
///
/// # Errors
/// The solver's, whichever way it takes: it at times ends on a singular basis. Other shapes are near, so
/// one shape's must not end a search that places any.
pub(super) fn place(shape: &Shape, room: &Room) -> Result<Option<Policy>, PlanError> {
    let mut result = Ok(None);
    for room in [*room, room.times(A_LITTLE_LESS)] {
        for weight in TRAFFIC_WEIGHTS {
            result = place_weighing(shape, &room, weight);
            if result.is_ok() {
                return result;
            }
        }
    }
    result
}

fn place_weighing(
    shape: &Shape,
    room: &Room,
    traffic_weight: f64,
) -> Result<Option<Policy>, PlanError> {
    let form = &shape.form;
    let mut program = Program::new(shape);
    let prefill = program.time(form.prefill());
    let decode = program.time(form.decode());
    let passes = form.decode_passes();
    let unit = prefill.unit_s + passes * decode.unit_s;
    let shares = [prefill.unit_s / unit, passes * decode.unit_s / unit];
    let latency = shares[0] * prefill.variable + shares[1] * decode.variable;
    let traffic = program.traffic(form.prefill(), shares[0] / prefill.unit_s)
        + program.traffic(form.decode(), shares[1] / decode.unit_s);
    for (row, most) in room.rows(form) {
        program.fit(row, most, None);
    }
    let solved = program.minimise(latency + traffic_weight * traffic)?;
    let placed = solved.map(|shares| shares.write(shape.policy));
    Ok(placed.filter(|policy| fits(shape, policy, room)))
}

/// The placement of a shape that exceeds its room by least, each part of it relative to its size; none where the solver has none, which
/// at times ends on a singular basis. Other shapes are near.
pub(super) fn place_with_least_excess(shape: &Shape, room: &Room) -> Option<Policy> {
    let mut program = Program::new(shape);
    let mut excess = Expression::default();
    for (row, most) in room.rows(&shape.form) {
        let own = program.variables.add(variable().min(0.0));
        excess += own;
        program.fit(row, most, Some(own));
    }
    let shares = program.minimise(excess).ok().flatten()?;
    Some(shares.write(shape.policy))
}

/// The constraints once more, as they were before they were scaled.
fn fits(shape: &Shape, policy: &Policy, room: &Room) -> bool {
    let rows = room.rows(&shape.form);
    let within = |(row, most): (&Linear, f64)| row.at(policy) <= most * (1.0 + OVER_MAX) + 1.0;
    policy.validate().is_ok() && rows.into_iter().all(within)
}

/// Shares that are free: on the host and on disk.
#[derive(Debug, Clone, Copy)]
struct Free<T> {
    host: T,
    disk: T,
}

/// A linear program being written: each row is an expression and what it must not exceed.
struct Program {
    variables: ProblemVariables,
    weights: Free<Variable>,
    cache: Free<Variable>,
    activations: Free<Variable>,
    rows: Vec<(Expression, f64)>,
}

/// The time of a phase as a variable.
struct Time {
    variable: Variable,
    /// Seconds that one of the variable is.
    unit_s: f64,
}

/// A solution.
struct Shares {
    weights: Fractions,
    cache: Fractions,
    activations: Fractions,
}

impl Program {
    fn new(shape: &Shape) -> Program {
        let mut variables = ProblemVariables::new();
        let mut free = |all_on: Option<Tier>| {
            let mut share = |tier: Tier| {
                let [least, most] = match all_on {
                    None => [0.0, 1.0],
                    Some(all_on) => [f64::from(u8::from(all_on == tier)); 2],
                };
                variables.add(variable().min(least).max(most))
            };
            Free {
                host: share(Tier::Host),
                disk: share(Tier::Disk),
            }
        };
        let undivided = shape.undivided;
        let weights = free(None);
        let (cache, activations) = (free(undivided.cache), free(undivided.activations));
        let both = |free: Free<Variable>| (free.host + free.disk, 1.0);
        Program {
            rows: vec![both(weights), both(cache), both(activations)],
            variables,
            weights,
            cache,
            activations,
        }
    }

    /// A row's value without its constant (all on the device), with that, and the largest number.
    fn row(&self, row: &Linear, unit: f64) -> (Expression, f64, f64) {
        let parts = [
            (row.weights, self.weights),
            (row.cache, self.cache),
            (row.activations, self.activations),
        ];
        let mut constant = row.constant / unit;
        let mut expression = Expression::default();
        let mut largest = constant.abs();
        for (slopes, free) in parts {
            constant += slopes.device / unit;
            for (slope, variable) in [(slopes.host, free.host), (slopes.disk, free.disk)] {
                let slope = (slope - slopes.device) / unit;
                if slope != 0.0 {
                    expression.add_mul(slope, variable);
                    largest = largest.max(slope.abs());
                }
            }
        }
        (expression, constant, largest.max(constant.abs()))
    }

    /// The time of a phase: not less than any of its rows.
    fn time(&mut self, phase: &Phase) -> Time {
        let unit_s = phase.lowest_s().0.max(f64::MIN_POSITIVE);
        let variable = self.variables.add(variable().min(1.0));
        // What never takes longer than the least time of the phase cannot bind.
        for row in phase
            .rows()
            .into_iter()
            .filter(|row| row.highest() > unit_s)
        {
            let (expression, constant, largest) = self.row(&row, unit_s);
            let scale = largest.max(1.0);
            self.rows
                .push(((expression - variable) * (1.0 / scale), -constant / scale));
        }
        Time { variable, unit_s }
    }

    /// All terms of a phase added up, in units of time.
    fn traffic(&self, phase: &Phase, scale: f64) -> Expression {
        let terms = phase.terms();
        let rows = terms.iter().map(|(_, row)| self.row(row, 1.0).0 * scale);
        rows.sum()
    }

    /// Memory within `room` bytes, or above it by `excess` of it.
    fn fit(&mut self, memory: &Linear, room: f64, excess: Option<Variable>) {
        if room.is_infinite() || (excess.is_none() && memory.highest() <= room) {
            return;
        }
        let unit = room.max(1.0);
        let (expression, constant, largest) = self.row(memory, unit);
        let expression = match excess {
            Some(excess) => expression - excess,
            None => expression,
        };
        let scale = 1.0 / largest.max(1.0);
        self.rows
            .push((expression * scale, (room / unit - constant) * scale));
    }

    /// The least shares, or none where no shares satisfy all rows.
    fn minimise(self, objective: Expression) -> Result<Option<Shares>, PlanError> {
        let mut model = self.variables.minimise(objective).using(microlp);
        for (expression, most) in self.rows {
            model.add_constraint(constraint!(expression <= most));
        }
        let solution = match model.solve() {
            Ok(solution) => solution,
            Err(ResolutionError::Infeasible) => return Ok(None),
            Err(error) => return Err(PlanError::Solver(error.to_string())),
        };
        let fractions = |free: Free<Variable>| {
            whole_shares(solution.value(free.host), solution.value(free.disk))
        };
        Ok(Some(Shares {
            weights: fractions(self.weights),
            cache: fractions(self.cache),
            activations: fractions(self.activations),
        }))
    }
}

impl Shares {
    fn write(self, policy: Policy) -> Policy {
        Policy {
            weights: self.weights,
            cache: self.cache,
            activations: self.activations,
            ..policy
        }
    }
}

/// Shares from the two free ones, without a solver's crumbs.
fn whole_shares(host: f64, disk: f64) -> Fractions {
    let clean = |share: f64| {
        if share < SHARE_MIN {
            0.0
        } else {
            share.min(1.0)
        }
    };
    let shares = PerTier {
        device: clean(1.0 - host - disk),
        host: clean(host),
        disk: clean(disk),
    };
    let sum = shares.device + shares.host + shares.disk;
    shares.map(|share| share / sum)
}
