//! Products with a model's weights: each implementation alone, and what dispatch makes of them.

use plimsoll_core::hardware::{Implementation, Slowness};

use super::BenchOptions;
use crate::cpu::CpuError;
use crate::cuda::CudaError;
use crate::cuda::executor::{Operands, choose, choose_joined, learn_on, with_stream};
use crate::dispatch::{Dispatch, Tried, Weights};
use crate::kernels::linear::Way;
use crate::probe::{ProbeError, median, products};

/// Elements of results that are held against each other, at most.
const COMPARED_MOST: usize = 1 << 16;

/// Times of a product `y [m, n] = x [m, k] times weights [n, k]`, the weights from memory.
#[derive(Debug, Clone, PartialEq)]
pub struct ProductTimes {
    /// n and k.
    pub weights: Weights,
    /// Whether they stand for those of several products that share their input, which a GPU computes as one.
    pub joined: bool,
    /// m.
    pub rows: usize,
    /// Seconds of each implementation (the middle of several times) that computes so many rows.
    pub seconds: Vec<(Implementation, f64)>,
    /// What an executor takes.
    pub dispatched: Implementation,
    /// Bytes of weights, x and y.
    pub bytes: u64,
    /// How far results of the implementations are from each other, as a share of the largest; none where that was not looked at:
    /// the CPU's have the same bits, as its tests say.
    pub apart: Option<f32>,
}

impl ProductTimes {
    fn new(weights: Weights, tried: &[Tried], dispatched: Implementation, rows: usize) -> Self {
        let Weights { dtype, n, k, .. } = weights;
        let others = (rows * (n + k)) as u64 * dtype.size_bytes();
        let seconds = tried.iter().map(|t| (t.implementation, median(&t.seconds)));
        ProductTimes {
            weights,
            joined: false,
            rows,
            seconds: seconds.collect(),
            dispatched,
            bytes: weights.bytes() as u64 + others,
            apart: None,
        }
    }

    /// Seconds of an implementation, where it computes so many rows.
    pub fn seconds_of(&self, implementation: Implementation) -> Option<f64> {
        let mut all = self.seconds.iter();
        all.find(|(of, _)| *of == implementation).map(|(_, s)| *s)
    }

    /// Bytes/s of what an executor takes.
    pub fn bytes_per_s(&self) -> Option<f64> {
        let seconds = self.seconds_of(self.dispatched)?;
        Some(self.bytes as f64 / seconds.max(1e-9))
    }

    /// The time of what an executor takes over that of the conventional implementation.
    pub fn over_conventional(&self) -> Option<f64> {
        let conventional = self.seconds_of(Implementation::Conventional)?;
        Some(self.seconds_of(self.dispatched)? / conventional.max(1e-9))
    }
}

/// Has dispatch measure what it does not know, as a profile's and an executor's do.
pub(super) fn learn(options: &BenchOptions) -> Result<(), ProbeError> {
    let dispatch = &options.cpu.dispatch;
    let shapes = match options.packed && options.cpu.card.is_some() {
        true => Weights::whole_then_in_groups(matrices(options)),
        false => shapes(options),
    };
    match &options.cpu.card {
        // Each by itself, so that nobody waits for all of them to be rid of it.
        Some(card) => shapes.into_iter().try_for_each(|weights| {
            options.cpu.check_goes_on()?;
            Ok(learn_on(&**card, dispatch, vec![weights]).map_err(CpuError::from)?)
        }),
        None => dispatch.learn(shapes, |weights| {
            options.cpu.check_goes_on()?;
            let repeats = options.cpu_repeats;
            let tried = products::on_device(weights, repeats, &options.cpu)?;
            Ok(products::at_pace(weights, tried, &Slowness::NONE))
        }),
    }
}

/// The model's, each once.
fn shapes(options: &BenchOptions) -> Vec<Weights> {
    let whole = matrices(options);
    match options.packed {
        true => whole.into_iter().map(Weights::in_groups).collect(),
        false => whole,
    }
}

/// With whole weights.
fn matrices(options: &BenchOptions) -> Vec<Weights> {
    let (model, dtype) = (&options.model, options.dtype);
    match options.cpu.card {
        Some(_) => Weights::of_model_on_card_and_joined(model, dtype),
        None => Weights::of_model(model, dtype),
    }
}

/// All shapes of the model, all rows.
pub(super) fn measure(options: &BenchOptions) -> Result<Vec<ProductTimes>, ProbeError> {
    let mut all = Vec::new();
    for weights in shapes(options) {
        options.cpu.check_goes_on()?;
        all.extend(match &options.cpu.card {
            Some(card) => {
                let measured = with_stream(&**card, || on_card(options, weights));
                measured.map_err(CpuError::from)?
            }
            None => on_core(options, weights)?,
        });
    }
    Ok(all)
}

fn on_card(options: &BenchOptions, weights: Weights) -> Result<Vec<ProductTimes>, CudaError> {
    let (Some(card), Some(most)) = (&options.cpu.card, options.rows.last()) else {
        return Ok(Vec::new());
    };
    let dispatch = &options.cpu.dispatch;
    let operands = Operands::new((&**card, dispatch), weights, *most)?;
    let by_themselves = Weights::of_model_on_card(&options.model, options.dtype);
    let joined = !by_themselves.contains(&Weights {
        packed: false,
        ..weights
    });
    // Where products are not computed as one, each is by itself.
    let dispatched = |m: usize| match joined {
        true => choose_joined(dispatch, m, weights),
        false => Some(choose(dispatch, m, weights)),
    };
    let of_rows = |m: usize, dispatched| {
        let tried = operands.tried(m, options.repeats)?;
        Ok(ProductTimes {
            joined,
            apart: Some(operands.apart(m, COMPARED_MOST)?),
            ..ProductTimes::new(weights, &tried, dispatched, m)
        })
    };
    let rows = options.rows.iter();
    rows.filter_map(|m| Some(of_rows(*m, dispatched(*m)?)))
        .collect()
}

fn on_core(options: &BenchOptions, weights: Weights) -> Result<Vec<ProductTimes>, ProbeError> {
    let (rows, repeats) = (&options.rows, options.cpu_repeats);
    let dispatched = |rows: usize| chosen_on_cpu(&options.cpu.dispatch, weights, rows);
    let is_timed = |by, rows| products::computes(by, rows) || by == dispatched(rows);
    let asked = (rows.as_slice(), &is_timed as &products::Computes<'_>);
    let tried = products::of_rows(weights, asked, repeats, &options.cpu)?;
    let of_rows = |m: &usize| {
        let tried: Vec<Tried> = tried.iter().filter(|t| t.m == *m).cloned().collect();
        ProductTimes::new(weights, &tried, dispatched(*m), *m)
    };
    Ok(rows.iter().map(of_rows).collect())
}

/// What the emulated device takes.
fn chosen_on_cpu(dispatch: &Dispatch, weights: Weights, rows: usize) -> Implementation {
    match dispatch.ways(weights).of(rows) {
        Way::Dots => Implementation::Gemv,
        Way::Tile => Implementation::Flat,
        Way::Panels => Implementation::Conventional,
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::Dtype;
    use plimsoll_core::hardware::Inflections;

    use super::*;
    use Implementation::{Conventional, Flat, Gemv};

    const WEIGHTS: Weights = Weights {
        dtype: Dtype::F16,
        n: 3,
        k: 5,
        packed: false,
        biased: false,
    };

    #[test]
    fn figures_are_those_of_what_is_dispatched() {
        let tried = |implementation, seconds: &[f64]| Tried {
            implementation,
            m: 2,
            seconds: seconds.to_vec(),
        };
        let all = [tried(Gemv, &[3.0, 1.0, 2.0]), tried(Conventional, &[4.0])];
        let times = ProductTimes::new(WEIGHTS, &all, Gemv, 2);
        // 15 elements of weights, 10 of x and 6 of y.
        assert_eq!(times.bytes, 62);
        assert_eq!(times.bytes_per_s(), Some(31.0));
        assert_eq!(times.over_conventional(), Some(0.5));
        let flat = ProductTimes::new(WEIGHTS, &all, Flat, 2);
        assert_eq!((flat.bytes_per_s(), flat.over_conventional()), (None, None));
    }

    #[test]
    fn the_cpu_takes_what_its_table_says() {
        let points = Inflections {
            m1: Some(2),
            m2: Some(14),
        };
        let dispatch = Dispatch::of([(WEIGHTS, points)]);
        let chosen = [1, 2, 13, 14].map(|rows| chosen_on_cpu(&dispatch, WEIGHTS, rows));
        assert_eq!(chosen, [Gemv, Flat, Flat, Conventional]);
    }
}
